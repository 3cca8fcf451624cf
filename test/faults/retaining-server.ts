/** The service, which looks for due retention policies all the time, and takes short leases of them. */
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
  settings: { retentionMs: 20, retentionLeaseMs: 1500 },
});
process.once('SIGTERM', () => void drain().then(() => process.exit(0)));
process.stdout.write(`${JSON.stringify({ event: 'ready', url, host, port, store: storeDescription })}\n`);
