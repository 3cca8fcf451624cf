import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { startJanitor } from './janitor.ts';

/**
 * Creates a folder for all temporary files of tests and of the processes they start, removed after the run however it
 * ends.
 */
export async function setup(): Promise<() => Promise<void>> {
  const folder = await mkdtemp(path.join(await realpath(os.tmpdir()), 'anabranch-tests-'));
  await chmod(folder, 0o711); // Postgres runs as another user when the tests run as root
  process.env.TMPDIR = folder;
  process.env.TEST_CLUSTERS = folder;
  // Processes of a killed run may still write when the janitor runs first.
  const janitor = startJanitor('rm -rf "$1"; sleep 1; rm -rf "$1"', [folder]);
  return async () => {
    await rm(folder, { recursive: true, force: true });
    janitor.cancel();
  };
}
