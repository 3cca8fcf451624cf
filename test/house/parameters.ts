import { parseAst } from 'rolldown/parseAst';
import type { SourceFile } from './source.ts';

export interface Parameters {
  /** File and name: `src/store/open.ts openStore`. Functions without a name have that of what encloses them. */
  readonly of: string;
  readonly count: number;
}

/** Returns the parameters of all functions of a file, also those that interfaces and types declare. */
export function parametersIn({ path, text }: Pick<SourceFile, 'path' | 'text'>): Parameters[] {
  const found: Parameters[] = [];
  const visit = (node: unknown, enclosing: string): void => {
    if (typeof node !== 'object' || node === null) return;
    const name = nameOf(node) ?? enclosing;
    if ('returnType' in node && 'params' in node && Array.isArray(node.params)) {
      found.push({ of: `${path} ${name}`, count: node.params.length });
    }
    for (const child of Object.values(node)) visit(child, name);
  };
  visit(parseAst(text, { lang: 'ts' }, path), '');
  return found;
}

/** Returns the name that a node of the syntax tree declares: of a function or variable (`id`), or a member (`key`). */
function nameOf(node: object): string | undefined {
  const named = ('id' in node && node.id) || ('key' in node && node.key);
  if (typeof named !== 'object' || named === null || !('name' in named)) return undefined;
  return typeof named.name === 'string' ? named.name : undefined;
}
