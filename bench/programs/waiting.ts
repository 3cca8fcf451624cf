import { readFileSync } from 'node:fs';
import { Client, credentials } from '@grpc/grpc-js';
import pg from 'pg';
import { cpuSeconds } from '../processes.ts';
import { pause, program } from './program.ts';

/** Streams or calls that wait on a server, and a call that is made beside them at intervals. */
export interface WaitingSettings {
  readonly address: string;
  /** The server first. */
  readonly pids: readonly number[];
  /** URL of Postgres. */
  readonly database: string;
  readonly method: string;
  /** Base64 of one request for each. */
  readonly requests: readonly string[];
  /** Whether the first message says that a stream waits. */
  readonly answers: boolean;
  readonly beside?: { readonly method: string; readonly request: string; readonly perSecond: number } | undefined;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface WaitingFigures {
  /** Of all transactions of the database, statements outside of transactions included. */
  readonly transactionsPerSecond: number;
  /** Of the server and Postgres. */
  readonly cores: number;
  /** Memory of the server for each that waits. */
  readonly kibEach: number;
}

const PER_CONNECTION = 50;
const same = (bytes: Buffer) => bytes;

await program(async (settings: WaitingSettings): Promise<WaitingFigures> => {
  const { requests, pids, seconds } = settings;
  const sql = new pg.Client(settings.database);
  await sql.connect();
  const client = (i: number) =>
    new Client(settings.address, credentials.createInsecure(), {
      'bench.connection': i,
      'grpc.use_local_subchannel_pool': 1,
    });
  const clients = Array.from({ length: Math.ceil(requests.length / PER_CONNECTION) }, (_, i) => client(i));
  const before = memoryKib(pids[0]!);
  const waits = requests.map((request, i) => {
    const stream = clients[Math.floor(i / PER_CONNECTION)]!.makeServerStreamRequest(
      settings.method,
      same,
      same,
      Buffer.from(request, 'base64'),
    );
    return new Promise<void>((resolve, reject) => {
      stream.on('error', reject);
      stream.on('data', () => resolve());
      if (!settings.answers) resolve();
    });
  });
  await Promise.all(waits);
  const { beside } = settings;
  if (beside !== undefined) void repeat(client(-1), beside);
  await pause(settings.warmupSeconds);
  const kibEach = (memoryKib(pids[0]!) - before) / requests.length;
  const [transactions, cpu] = [await transactionsOf(sql), cpuSeconds(pids)];
  await pause(seconds);
  const cores = (cpuSeconds(pids) - cpu) / seconds;
  return { transactionsPerSecond: ((await transactionsOf(sql)) - transactions) / seconds, cores, kibEach };
});

async function repeat(client: Client, { method, request, perSecond }: NonNullable<WaitingSettings['beside']>) {
  const bytes = Buffer.from(request, 'base64');
  for (const begun = performance.now(), end = Number.POSITIVE_INFINITY, made = { calls: 0 }; made.calls < end; ) {
    const due = ((performance.now() - begun) / 1000) * perSecond;
    for (; made.calls < due; made.calls += 1) client.makeUnaryRequest(method, same, same, bytes, () => undefined);
    await pause(0.01);
  }
}

async function transactionsOf(sql: pg.Client): Promise<number> {
  const text = 'select xact_commit + xact_rollback as count from pg_stat_database where datname = current_database()';
  const { rows } = await sql.query<{ count: string }>(text);
  return Number(rows[0]!.count);
}

/** Returns NaN without /proc. */
function memoryKib(pid: number): number {
  try {
    return Number(/^VmRSS:\s*(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))?.[1]);
  } catch {
    return Number.NaN;
  }
}
