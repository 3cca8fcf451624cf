import process from 'node:process';
import { dropPostgresDatabase, nameTemplate, templateLogin } from './database.ts';
import { startPostgres } from './postgres.ts';
import { setup as createFolder } from './temporary-folder.ts';

/**
 * Runs once for a test run. Creates the folder of its temporary files, and starts one Postgres, whose URL is in
 * TEST_DATABASE_URL; if that is set already, the server it names is used and none is started.
 */
export async function setup(): Promise<() => Promise<void>> {
  const removeFolder = await createFolder();
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
