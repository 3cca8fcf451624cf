/**
 * Writes the limits of this version into gen/, which clients use until a server has told its own, for the TypeScript
 * client the version itself, and into docs/limitations.md what each limit bounds.
 *
 * Part of `npm run generate`.
 */
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { LIMITS } from '../src/domain/limits.ts';
import { packageVersion } from '../src/version.ts';

const GEN = path.resolve(import.meta.dirname, '../gen');
const NOTE = 'The limits of this version, by the names of docs/limitations.md. Generated from src/domain/limits.ts.';

const VERSION_NOTE = '/** The version of this package. Generated from package.json. */';

const limits = Object.entries(LIMITS);
const members = (line: (name: string, value: number) => string) =>
  limits.map(([name, value]) => `${line(name, value)}\n`).join('');

await writeFile(
  path.join(GEN, 'es/anabranch/v1/limits.js'),
  `${VERSION_NOTE}\nexport const VERSION = '${packageVersion()}';\n\n/** ${NOTE} */\nexport const LIMITS = Object.freeze({\n${members((name, value) => `  ${name}: ${value},`)}});\n`,
);
await writeFile(
  path.join(GEN, 'es/anabranch/v1/limits.d.ts'),
  `${VERSION_NOTE}\nexport declare const VERSION: string;\n\n/** ${NOTE} */\nexport declare const LIMITS: {\n${members((name) => `  readonly ${name}: number;`)}};\n`,
);
await writeFile(
  path.join(GEN, 'python/anabranch/v1/limits.py'),
  `"""${NOTE}"""\n\nLIMITS: dict[str, int] = {\n${members((name, value) => `    "${name}": ${value},`)}}\n`,
);

const DOCUMENT = path.resolve(import.meta.dirname, '../docs/limitations.md');
const source = await readFile(path.resolve(import.meta.dirname, '../src/domain/limits.ts'), 'utf8');
const comments = new Map(
  [...source.matchAll(/\/\*\*((?:(?!\*\/)[\s\S])*)\*\/\s+(\w+):/g)].map(([, text = '', name = '']) => [
    name,
    text.replaceAll(/\s*\n\s*\* ?/g, ' ').trim(),
  ]),
);
const rows = limits.map(([name, value]) => `| \`${name}\` | ${amount(name, value)} | ${comments.get(name)} |\n`);
const table = `| name | value | what it bounds |\n|---|---|---|\n${rows.join('')}`;
const document = await readFile(DOCUMENT, 'utf8');
await writeFile(
  DOCUMENT,
  document.replace(/(?<=<!-- limits -->\n)[\s\S]*?(?=<!-- end of limits -->)/u, () => table),
);

/** Bytes as KiB or MiB, anything else as a number. */
function amount(name: string, value: number): string {
  const unit = [1024 ** 2, 1024].find((size) => name.includes('Bytes') && value % size === 0) ?? 1;
  const shown = (value / unit).toLocaleString('en');
  return unit === 1 ? shown : `${shown} ${unit === 1024 ? 'KiB' : 'MiB'}`;
}
