import path from 'node:path';
import { importsOf, type SourceFile } from './source.ts';

/** For each file, the files that it imports, also for types only. */
export type ImportGraph = ReadonlyMap<string, readonly string[]>;

/** Returns the imports between these files. Imports of packages and of other files are left out. */
export function importGraph(files: readonly Pick<SourceFile, 'path' | 'code'>[]): ImportGraph {
  const known = new Set(files.map((file) => file.path));
  const importsIn = ({ path: file, code }: Pick<SourceFile, 'path' | 'code'>): string[] => {
    const relative = importsOf(code).filter((wanted) => wanted.startsWith('.'));
    const targets = relative.map((wanted) => path.posix.join(path.posix.dirname(file), wanted));
    return [...new Set(targets)].filter((target) => known.has(target));
  };
  return new Map(files.map((file) => [file.path, importsIn(file)]));
}

/**
 * Returns cycles as lists of files that begin and end with the same file. Finds at least one cycle if there is any: a
 * depth-first search reports each import that leads back into the chain of imports under way.
 */
export function importCycles(graph: ImportGraph): string[][] {
  const cycles: string[][] = [];
  const done = new Set<string>();
  const chain: string[] = [];
  const visit = (file: string): void => {
    const at = chain.indexOf(file);
    if (at !== -1) cycles.push([...chain.slice(at), file]);
    if (at !== -1 || done.has(file)) return;
    chain.push(file);
    for (const target of graph.get(file) ?? []) visit(target);
    chain.pop();
    done.add(file);
  };
  for (const file of graph.keys()) visit(file);
  return cycles;
}
