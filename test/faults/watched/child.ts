/** A server in a process of its own that reports, when asked, what it holds; started by `watched-server.ts`. */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import process from 'node:process';
import { pino } from 'pino';
import { loadConfig } from '../../../src/config/config.ts';
import { startServer } from '../../../src/server.ts';
import type { Glance } from './watched-server.ts';

const [database = '', settings = '{}', flags = '{}'] = process.argv.slice(2);
const config = loadConfig({
  env: {},
  flags: { listen: '127.0.0.1:0', database, ...(JSON.parse(flags) as object) },
  cwd: '/',
  readFile: () => undefined,
});
const logger = pino({ level: 'warn' }, pino.destination({ dest: 1, sync: true }));
const server = await startServer(config, { logger, settings: JSON.parse(settings) as object });
const delay = monitorEventLoopDelay({ resolution: 5 });
delay.enable();

process.on('message', () => {
  const { user, system } = process.cpuUsage();
  const glance: Glance = {
    counts: server.counts(),
    heapUsed: process.memoryUsage().heapUsed,
    cpuMs: (user + system) / 1000,
    longestPauseMs: delay.max / 1e6,
  };
  delay.reset();
  process.send?.(glance);
});
process.on('disconnect', () => process.exit());
process.send?.({ url: server.url, port: server.port });
