/**
 * The service, which merges the rows of a trajectory and returns free space as soon as it pauses for some milliseconds.
 */
import process from 'node:process';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { startServer } from '../../src/server.ts';

const { values } = parseArgs({
  options: { listen: { type: 'string' }, json: { type: 'boolean' } },
  allowPositionals: true,
});
const config = loadConfig({ env: process.env, flags: { listen: values.listen ?? '' }, cwd: process.cwd() });
const { url, host, port, storeDescription, drain } = await startServer(config, {
  logger: pino({ level: 'warn' }),
  settings: { mergeIdleMs: 10, freeSpaceMs: 10 },
});
process.once('SIGTERM', () => void drain().then(() => process.exit(0)));
process.stdout.write(`${JSON.stringify({ event: 'ready', url, host, port, store: storeDescription })}\n`);
