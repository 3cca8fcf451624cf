import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { dropPostgresDatabase, nameTemplate, templateLogin } from './database.ts';
import { startJanitor } from './janitor.ts';
import { startPostgres } from './postgres.ts';

/**
 * Runs once for a test run. Creates a folder for all temporary files of tests and of the processes they start, removed
 * after the run however it ends. Starts one Postgres, whose URL is in TEST_DATABASE_URL; if that is set already, the
 * server it names is used and none is started.
 */
export async function setup(): Promise<() => Promise<void>> {
  const removeFolder = await temporaryFolder();
  nameTemplate();
  const given = process.env.TEST_DATABASE_URL;
  if (given) {
    return async () => {
      await dropPostgresDatabase(given, templateLogin());
      await removeFolder();
    };
  }
  const postgres = await startPostgres();
  process.env.TEST_DATABASE_URL = postgres.url;
  return async () => {
    await postgres.stop();
    await removeFolder();
  };
}

async function temporaryFolder(): Promise<() => Promise<void>> {
  const folder = await mkdtemp(path.join(await realpath(os.tmpdir()), 'anabranch-tests-'));
  await chmod(folder, 0o711); // Postgres runs as another user when the tests run as root
  process.env.TMPDIR = folder;
  // Processes of a killed run may still write when the janitor runs first.
  const janitor = startJanitor('rm -rf "$1"; sleep 1; rm -rf "$1"', [folder]);
  return async () => {
    await rm(folder, { recursive: true, force: true });
    janitor.cancel();
  };
}
