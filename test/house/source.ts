import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

export const ROOT = path.resolve(import.meta.dirname, '../..');

export interface SourceFile {
  /** From the root of the repository, with slashes. */
  readonly path: string;
  readonly text: string;
  /** The text without comments; strings keep their position and length. */
  readonly code: string;
}

/** Every TypeScript file below a folder, in the order of their paths; empty if the folder does not exist. */
export function sources(folder: string): SourceFile[] {
  if (!existsSync(path.join(ROOT, folder))) return [];
  return readdirSync(path.join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name))
    .map((entry) => path.relative(ROOT, path.join(entry.parentPath, entry.name)).split(path.sep).join('/'))
    .sort()
    .map((file) => {
      const text = readFileSync(path.join(ROOT, file), 'utf8');
      return { path: file, text, code: withoutComments(text) };
    });
}

/**
 * The imports of a module: `import`, `import type`, `export … from`, `import()` and `import('…').Type`. A dynamic
 * import of anything but a literal is returned as `?`, since its target is unknown.
 */
export function importsOf(code: string): string[] {
  const literals = [
    ...code.matchAll(/^\s*(?:import|export)\b[^;'"]*?\bfrom\s*(['"])(.*?)\1/gm),
    ...code.matchAll(/^\s*import\s*(['"])(.*?)\1/gm),
    ...code.matchAll(/\bimport\s*\(\s*(['"])(.*?)\1/g),
  ].map((match) => match[2] ?? '?');
  const computed = [
    ...code.matchAll(/\bimport\s*\(\s*(?!['"])/g),
    ...code.matchAll(/\b(?:createRequire|require)\s*\(/g),
  ];
  return [...literals, ...computed.map(() => '?')];
}

/**
 * Comments can contain quotes and strings can contain comment markers, so both are parsed together, from left to right.
 */
export function withoutComments(text: string): string {
  const token =
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|[^`\\])*`|\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n*[])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])*\/[a-z]*(?=\s*[.,;)\]}]|\s*$)/gm;
  return text.replace(token, (found) => (/^\/[/*]/.test(found) ? found.replace(/[^\n]/g, ' ') : found));
}
