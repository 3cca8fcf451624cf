import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import process from 'node:process';
import { pino } from 'pino';
import { ensureAdminKey } from '../../src/admin_key.ts';
import { type Config, loadConfig } from '../../src/config/config.ts';
import { countExternalMemoryAsHeap } from '../../src/external_memory.ts';
import { limitToThisThread } from '../../src/initial_heap.ts';
import { exportTraces } from '../../src/observe/otlp.ts';
import { serveStore } from '../../src/server.ts';
import { openStore } from '../../src/store/open.ts';
import type { IssuedFiles } from '../../test/support/certificates.ts';
import { startBareServer } from '../bare.ts';
import { memoryStore } from '../memory_store.ts';
import { nullStore } from '../null_store.ts';

/**
 * A server of the bench. `real`: the service. `null`: the service over a store that acknowledges appends at once.
 * `memory`: the service over a store that keeps the pages of steps that it has read. `bare`: a handler that only
 * acknowledges.
 */
export interface ServerSettings {
  readonly kind: 'real' | 'null' | 'memory' | 'bare';
  /** Database in the form of `--database`. */
  readonly database: string;
  /** Default: as the service. 0: segments are never merged. */
  readonly mergeIdleMs?: number;
  /** Default: no TLS. `ca` is the certificate, in PEM format, that clients trust. */
  readonly tls?: IssuedFiles & { readonly ca: string };
  /** Default: callers need no credential. A file with the key that they show; it is created. */
  readonly keyFile?: string;
  /** Default: no tokens are accepted. Settings of an issuer, and one of its tokens, which callers show. */
  readonly issuer?: {
    readonly flags: { readonly jwtIssuer: string; readonly jwtJwks: string; readonly principals: string };
    readonly token: string;
  };
  /** Default: no traces. Environment variables of OpenTelemetry, with a collector. */
  readonly otel?: Readonly<Record<string, string>>;
}

countExternalMemoryAsHeap(process.versions.node);
limitToThisThread(process.execArgv);
const settings = JSON.parse(process.argv[2] ?? '{}') as ServerSettings;
const server = settings.kind === 'bare' ? await startBareServer() : await serve(settings);
process.stdout.write(`${JSON.stringify({ port: server.port })}\n`);
// The pipe to the parent process: it closes when the parent has finished or died.
process.stdin.resume();
await once(process.stdin, 'end');
await server.drain();
process.exit(0);

async function serve({ kind, database, mergeIdleMs, tls, keyFile, issuer, otel }: ServerSettings) {
  const auth = keyFile === undefined && issuer === undefined ? {} : { auth: 'required', ...issuer?.flags };
  const flags = { listen: '127.0.0.1:0', database, drainSeconds: '1', ...tls, ...auth };
  const config: Config = loadConfig({ env: {}, flags, cwd: '/', readFile: () => undefined });
  const logger = pino({ level: 'error' }, process.stderr);
  const { poolSize, namedStatements } = config;
  const store = await openStore(
    config.database.engine === 'sqlite' ? config.database : { ...config.database, poolSize, namedStatements },
    { logger },
  );
  if (keyFile !== undefined) await ensureAdminKey(store, keyFile, randomUUID());
  const chosen = kind === 'null' ? nullStore(store) : kind === 'memory' ? memoryStore(store) : store;
  // The exporter reads the process.
  const tracing = otel && exportTraces(Object.assign(process.env, otel), 'bench', logger);
  return serveStore(chosen, config, { logger, tracing, settings: mergeIdleMs === undefined ? {} : { mergeIdleMs } });
}
