/**
 * Runs a command with a fresh Postgres of one's choice as TEST_DATABASE_URL, and ends it afterwards:
 *
 *   node test/support/with-postgres.ts /usr/lib/postgresql/15/bin npm test -- test/store
 *
 * `npm` in place of the folder is the Postgres of `npm ci`.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import process from 'node:process';
import { setup as useMemory } from './memory-folder.ts';
import { startPostgres } from './postgres.ts';

const [bin, command, ...args] = process.argv.slice(2);
if (bin === undefined || command === undefined) {
  console.error('Usage: node test/support/with-postgres.ts FOLDER-OF-INITDB-AND-POSTGRES COMMAND [ARGUMENT…]');
  process.exit(2);
}
await useMemory();
// JIT compilation of statements takes most of the time of a run, and changes no result. The npm-installed Postgres has
// no JIT.
const postgres = await startPostgres({ ...(bin === 'npm' ? {} : { bin }), settings: { jit: 'off' } });
const child = spawn(command, args, { stdio: 'inherit', env: { ...process.env, TEST_DATABASE_URL: postgres.url } });
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
const [code] = (await once(child, 'exit')) as [number | null];
await postgres.stop();
process.exitCode = code ?? 1;
