/** The package as a project on Node 20 installs it. */
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { run } from '../languages/run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

/** Finds Node 20 on the PATH, where the Node of the dependencies precedes it. */
export async function findNode20(): Promise<string> {
  const found: string[] = [];
  for (const folder of new Set((process.env.PATH ?? '').split(path.delimiter))) {
    const node = path.join(folder, 'node');
    const version = await run(node, ['-p', 'process.versions.node']).catch(() => '');
    if (version.startsWith('20.')) return node;
    if (version !== '') found.push(`${node} is ${version.trim()}`);
  }
  throw new Error(`The tests of the package need Node 20 on the PATH. Found: ${found.join(', ')}. Install Node 20.`);
}

/** Installs the packed package into an empty project, with engine-strict. Returns the project's folder. */
export async function installPackage(folder: string, node20: string, tarball: string): Promise<string> {
  const project = path.join(folder, 'project');
  await mkdir(project);
  await writeFile(path.join(project, 'package.json'), JSON.stringify({ private: true, type: 'module' }));
  const npm = path.join(path.dirname(node20), 'npm');
  const env = { PATH: `${path.dirname(node20)}${path.delimiter}${process.env.PATH}` };
  // What `npm ci` has downloaded is used again, and a download that hangs is repeated after a minute, not after five.
  const install = ['install', '--silent', '--engine-strict', '--prefer-offline', '--no-audit', '--fetch-timeout=60000'];
  await run(npm, [...install, tarball], { cwd: project, env, minutes: 10 });
  return project;
}

/** Returns the file of the package. Packs it into a folder, unless PACKED names a package that is packed already. */
export async function packPackage(folder: string): Promise<string> {
  if (process.env.PACKED !== undefined) return path.resolve(process.env.PACKED);
  const packed = await run('npm', ['pack', '--silent', '--pack-destination', folder], { cwd: ROOT, minutes: 5 });
  return path.join(folder, packed.trim().split('\n').at(-1) ?? '');
}
