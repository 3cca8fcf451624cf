/**
 * Writes the limits of this version into gen/, which clients use until a server has told its own, and for the TypeScript
 * client the version itself.
 *
 * Part of `npm run generate`.
 */
import { writeFile } from 'node:fs/promises';
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
