/**
 * Builds what the Python package `anabranch` contains of the server: `node pip/build.ts FOLDER`. Below the folder are
 * the bundled program, the built page, a package.json with the version, and the licenses of the packages in the bundle.
 */
import { cp, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { bundlePrograms } from './bundle.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const PAGE = path.join(ROOT, 'dist/page');

const [folder] = process.argv.slice(2);
if (folder === undefined) throw new Error('Usage: node pip/build.ts FOLDER');

// The server finds page and version where they are in a checkout, relative to the program.
const modules = await bundlePrograms(path.join(folder, 'server'), ['src/main.ts']);
for (const name of await readdir(PAGE, { recursive: true })) {
  if (name.endsWith('.gz')) await copy(path.join(PAGE, name), path.join(folder, 'page', name));
}
const { name, version, license } = JSON.parse(await readFile(path.join(ROOT, 'package.json'), 'utf8'));
await writeFile(
  path.join(folder, 'package.json'),
  `${JSON.stringify({ name, version, license, type: 'module', private: true })}\n`,
);
await writeFile(path.join(folder, 'LICENSES.txt'), await licensesOf(modules));

async function copy(from: string, to: string): Promise<void> {
  await mkdir(path.dirname(to), { recursive: true });
  await cp(from, to);
}

/** Returns the licenses of all packages that modules are from, each below the name of its package. */
async function licensesOf(modules: readonly string[]): Promise<string> {
  const packages = new Set(modules.flatMap((id) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/u.exec(id)?.[0] ?? []));
  const texts = [...packages].sort().map(async (place) => {
    const { name, license } = JSON.parse(await readFile(path.join(place, 'package.json'), 'utf8'));
    const file = (await readdir(place)).find((each) => /^licen[sc]e/iu.test(each));
    const text = file === undefined ? '' : await readFile(path.join(place, file), 'utf8');
    return `=== ${name} (${license})\n\n${text.trim()}\n`;
  });
  return (await Promise.all(texts)).join('\n');
}
