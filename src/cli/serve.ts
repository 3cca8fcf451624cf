import { Command } from 'commander';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import type { ExportedTracing } from '../observe/otlp.ts';
import type { RunningServer } from '../server.ts';
import { packageVersion } from '../version.ts';
import { valueJson } from './columns.ts';
import { addConfigOptions, configOf, createLogger } from './config_options.ts';
import { type CliContext, CliError, UsageError } from './context.ts';

/** Runs the server until it gets a signal, has had no clients for too long, or loses the file of its database. */
export function serveCommand(cli: CliContext): Command {
  const command = new Command('serve').description(
    'Run the server. It creates or migrates its database, and stops gracefully on Ctrl-C.',
  );
  return addConfigOptions(command)
    .option('--json', 'print one line of JSON with the address when the server is ready')
    .action(async (flags: Readonly<Record<string, unknown>>) => serve(cli, flags));
}

async function serve(cli: CliContext, flags: Readonly<Record<string, unknown>>): Promise<void> {
  const config = configOf(cli, flags);
  const logger = createLogger(cli, config);
  for (const warning of config.warnings) logger.warn(warning);
  // Loaded on demand, so that other commands start fast.
  const { startServer } = await import('../server.ts');
  const { measureProcess } = await import('../observe/metrics.ts');
  const tracing = await tracingOf(cli, logger);
  const [started, hungUp] = [Promise.withResolvers<RunningServer>(), new AbortController()];
  cli.onHangup?.(() => void hangUp(cli, config, started.promise, logger, hungUp));
  const signal = AbortSignal.any([cli.signal, hungUp.signal]);
  const deps = { logger, validator: cli.validator, processMetrics: measureProcess(), signal, tracing };
  const server = await startServer(config, deps).catch((error: unknown) => {
    if (error instanceof Error && error.name === 'AbortError') return undefined;
    throw error;
  });
  if (server === undefined) {
    await tracing?.stop();
    logger.info('stopped before the schema was migrated');
    return;
  }
  logger.info({ store: server.storeDescription }, `the database was chosen by ${config.databaseChosenBy}`);
  started.resolve(server);
  cli.stdout.write(flags.json === true ? readyLine(server, config) : welcome(server, config));
  const { lost, unused } = server;
  await stopped(AbortSignal.any([signal, lost, unused].filter((each) => each !== undefined)));
  if (cli.signal.reason === 'SIGTERM' || hungUp.signal.aborted) await leave(server, config, logger);
  if (unused?.aborted === true) logger.info({ seconds: config.exitWhenUnused }, 'no client has been connected');
  const patience = lost?.aborted === true ? '' : `; open calls have ${config.drainSeconds} seconds to end`;
  logger.info({ ...server.counts() }, `stopping${patience}`);
  await server.drain();
  await tracing?.stop();
  logger.info('stopped');
  if (lost?.aborted === true) throw new CliError('The server has stopped, because the file of its database was lost.');
}

/** Rereads files, as soon as the server runs, unless there are none or the terminal was closed: then it stops. */
async function hangUp(
  { stdin }: CliContext,
  { tls, identity }: Config,
  started: Promise<RunningServer>,
  logger: Logger,
  stop: AbortController,
): Promise<void> {
  if (stdin?.isTTY === true || (tls ?? identity) === undefined) {
    logger.info('SIGHUP: the server stops');
    stop.abort();
    return;
  }
  await (await started).reload();
  logger.info('SIGHUP: certificates and mapping files were read again');
}

/** The libraries are loaded only if there is a collector. They take the default address for one that is none. */
async function tracingOf({ env }: CliContext, logger: Logger): Promise<ExportedTracing | undefined> {
  const { OTEL_EXPORTER_OTLP_ENDPOINT: collector } = env;
  if (!collector) return undefined;
  if (!/^https?:$/u.test(URL.parse(collector)?.protocol ?? '')) {
    throw new UsageError(
      'OTEL_EXPORTER_OTLP_ENDPOINT is not the address of a collector (not shown: it may hold a password): expected http://HOST:PORT or https://HOST:PORT.',
    );
  }
  const { exportTraces } = await import('../observe/otlp.ts');
  return exportTraces(env, packageVersion(), logger);
}

async function leave(server: RunningServer, { lameDuckSeconds }: Config, logger: Logger): Promise<void> {
  if (lameDuckSeconds > 0) logger.info(`leaving; calls are accepted for ${lameDuckSeconds} more seconds`);
  await server.leave();
}

function readyLine(
  { url, host, port, metricsUrl, storeDescription }: RunningServer,
  { listen, databaseChosenBy }: Config,
): string {
  const at = 'socket' in listen ? { url } : { url, host, port };
  const ready = { event: 'ready', ...at, metricsUrl, store: storeDescription, storeChosenBy: databaseChosenBy };
  return `${valueJson(ready)}\n`;
}

function welcome(
  { url, metricsUrl, storeDescription }: RunningServer,
  { listen, databaseChosenBy, page, tls }: Config,
): string {
  const isSocket = 'socket' in listen;
  const curl = `curl -s ${isSocket ? `--unix-socket ${listen.socket} http://localhost` : url}`;
  const trust = tls === undefined ? '' : ' --cacert FILE';
  return `Anabranch listens on ${url} (gRPC, gRPC-Web, Connect and JSON, on one port).
${page === 'off' || isSocket ? '' : `Its page for browsers: ${url}/\n`}${metricsUrl === undefined ? '' : `Its metrics: ${metricsUrl}\n`}It stores in ${storeDescription}. The database was chosen by ${databaseChosenBy}.
Try it in another terminal:

  ${curl}/anabranch.v1.TrajectoryService/CreateTrajectory${trust} \\
    -H 'content-type: application/json' -d '{"name": "first"}'

Ctrl-C stops it.
`;
}

function stopped(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}

/** Creates the command that migrates a database without serving it. `serve` migrates by itself. */
export function migrateCommand(cli: CliContext): Command {
  const command = new Command('migrate').description(
    'Create the database, or migrate it to this version. The server does the same when it starts, unless it has --no-migrate.',
  );
  return addConfigOptions(command, ['--database', '--direct-database', '--log-level', '--log-format'])
    .option('--json', 'print the result as one line of JSON')
    .action(async (flags: Readonly<Record<string, unknown>>) => {
      const config = configOf(cli, flags);
      const logger = createLogger(cli, config);
      for (const warning of config.warnings) logger.warn(warning);
      // Loaded on demand, so that other commands start fast.
      const { migrateStore } = await import('../server.ts');
      const { storeDescription: store } = await migrateStore(config, { logger });
      const text = flags.json === true ? valueJson({ event: 'migrated', store }) : `${store} is up to date.`;
      cli.stdout.write(`${text}\n`);
    });
}
