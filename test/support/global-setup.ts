import process from 'node:process';
import { startPostgres } from './postgres.ts';

/**
 * One Postgres for the whole run, told to the tests by TEST_DATABASE_URL; where that is set already, the server it names
 * is used and nothing is started.
 */
export async function setup(): Promise<(() => Promise<void>) | undefined> {
  if (process.env.TEST_DATABASE_URL) return undefined;
  const postgres = await startPostgres();
  process.env.TEST_DATABASE_URL = postgres.url;
  return () => postgres.stop();
}
