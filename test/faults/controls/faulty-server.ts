/**
 * The service over a store with one mistake (FAULT), in a process that can be killed. It is composed here, so that the
 * service itself has no switch for it.
 */
import { randomUUID } from 'node:crypto';
import process from 'node:process';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { v7 } from 'uuid';
import { loadConfig } from '../../../src/config/config.ts';
import { LIMITS } from '../../../src/domain/limits.ts';
import { Port } from '../../../src/listen/port.ts';
import { createHandler } from '../../../src/rpc/handler.ts';
import { openStore } from '../../../src/store/open.ts';
import { createApp } from '../../../src/stream/app.ts';
import { packageVersion } from '../../../src/version.ts';
import { NO_DATABASE } from '../../support/no_database.ts';
import { FAULTS, faultyStore } from './faulty-store.ts';

const fault = FAULTS.find((name) => name === process.env.FAULT);
if (fault === undefined) throw new Error(`FAULT is "${process.env.FAULT}", but must be one of ${FAULTS.join(', ')}`);
const { values } = parseArgs({
  options: { listen: { type: 'string' }, json: { type: 'boolean' } },
  allowPositionals: true,
});
const config = loadConfig({ env: process.env, flags: { listen: values.listen ?? '' }, cwd: process.cwd() });
const logger = pino({ level: 'warn' });

const store = faultyStore(await openStore(config.database, { logger }), fault);
const app = createApp({
  store,
  ids: { uuid: () => v7(), uid: randomUUID },
  logger,
  settings: { commitsAtOnce: config.database.engine === 'sqlite' ? 1 : 2 },
});
const info = { version: packageVersion(), limits: LIMITS };
const { handle } = createHandler({ app, logger, info, database: NO_DATABASE });
const port = new Port({
  ...config.listen,
  handler: handle,
  maxMessageBytes: LIMITS.messageBytes,
  maxStreams: LIMITS.streamsPerConnection,
  onError: (error) => logger.error({ err: error }, 'a connection failed'),
});
const listening = await port.listen();
const url = `http://${listening.host}:${listening.port}`;
process.stdout.write(`${JSON.stringify({ event: 'ready', url, ...listening, store: store.description })}\n`);
