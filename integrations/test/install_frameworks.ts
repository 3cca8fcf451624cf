import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { run } from '../../test/languages/run.ts';

const FOLDER = path.resolve(import.meta.dirname, '..');
const INSTALLED = path.join(FOLDER, 'node_modules/.installed');

/**
 * Installs the frameworks beside the integrations, unless it was done: `npm ci` of the repository does without them.
 * Optional packages are left out: the Claude Agent SDK brings its command line (200 MB) as one.
 */
export async function setup(): Promise<void> {
  const lockfile = await readFile(path.join(FOLDER, 'package-lock.json'));
  const digest = createHash('sha256').update(lockfile).digest('hex');
  if ((await readFile(INSTALLED, 'utf8').catch(() => '')) === digest) return;
  const args = ['ci', '--silent', '--omit=optional', '--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund'];
  await run('npm', [...args, '--fetch-timeout=60000'], { cwd: FOLDER, minutes: 10 });
  await writeFile(INSTALLED, digest);
}
