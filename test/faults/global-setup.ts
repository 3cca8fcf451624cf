import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { startJanitor } from '../support/janitor.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

/** Programs that tests of faults start, about a hundred times. */
const PROGRAMS = [
  'src/main.ts',
  ...[
    'apply-retention',
    'claims/worker',
    'collect-states',
    'controls/faulty-server',
    'hostile/neighbour-child',
    'memory/measure',
    'merging-server',
    'migrating-server',
    'retaining-server',
    'watched/child',
  ].map((name) => `test/faults/${name}.ts`),
];

/** Bundles the programs once for a run. */
export async function setup(): Promise<() => Promise<void>> {
  const dist = path.join(ROOT, 'dist');
  await mkdir(dist, { recursive: true });
  const folder = await mkdtemp(path.join(dist, 'bundle-'));
  const janitor = startJanitor('rm -rf "$1"', [folder]);
  await promisify(execFile)(process.execPath, ['test/support/bundle.ts', folder, ...PROGRAMS], { cwd: ROOT });
  process.env.TEST_BUNDLE = folder;
  return async () => {
    await rm(folder, { recursive: true, force: true });
    janitor.cancel();
  };
}
