/** Cuts the connections between the server and its Postgres, under writers that never pause. */
import { connectClient } from '../../../src/client/index.ts';
import { createPostgresDatabase, type TestDatabase } from '../../support/database.ts';
import { startPostgres } from '../../support/postgres.ts';
import { startTcpProxy, type TcpProxy } from '../../support/tcp-proxy.ts';
import { checkAcked, type Verdict } from '../acked/check.ts';
import { startLoad } from '../acked/load.ts';
import type { Random } from '../random.ts';
import { spawnMergingServer } from '../spawn-merging.ts';
import { asOwner, connectionsLeft } from './connections.ts';
import { type Aftermath, aftermath } from './killing.ts';
import { type Answer, askAll, untilServed } from './outage.ts';

export interface Cutting {
  /** Times that some or all connections are cut. */
  readonly cuts: number;
  /** Times that the network between server and database drops everything silently. */
  readonly silences: number;
  readonly writers: number;
  readonly random: Random;
}

export interface CutsSurvived extends Verdict, Aftermath {
  readonly backendsEnded: number;
  readonly connectionsCut: number;
  readonly storedUnacked: number;
  readonly streamsCut: number;
  readonly failures: readonly string[];
  /** Every answer while the database was silent. */
  readonly answers: readonly Answer[];
  readonly recoveryMs: number;
  readonly connectionsLeft: number;
}

export async function cutConnections({ cuts, silences, writers, random }: Cutting): Promise<CutsSurvived> {
  await using postgres = await startPostgres({ port: 'free' });
  await using database = await createPostgresDatabase(postgres.url);
  await using proxy = await startTcpProxy({ host: '127.0.0.1', port: Number(new URL(postgres.url).port) });
  await using server = await spawnMergingServer({ database: through(proxy, database.url) });
  const client = connectClient({ address: server.url });
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'asked for' });
  const load = await startLoad({ address: server.url, writers });
  let backendsEnded = 0;
  for (let cut = 0; cut < cuts; cut += 1) {
    await load.progress(random.between(1, 300));
    backendsEnded += await cutOnce(WAYS[cut % WAYS.length]!, proxy, database, random);
  }
  const answers: Answer[] = [];
  let recoveryMs = 0;
  for (let silence = 0; silence < silences; silence += 1) {
    await load.everyone();
    proxy.blackhole();
    // The first calls use connections that do not answer, the second ones have to open new ones.
    answers.push(...(await askAll(client, trajectory!.id)), ...(await askAll(client, trajectory!.id)));
    await proxy.release();
    const served = await untilServed(client, trajectory!.id);
    recoveryMs = Math.max(recoveryMs, served.ms);
  }
  await load.everyone();
  const verdict = await checkAcked(client, database, await load.stop());
  const left = await connectionsLeft(database);
  client.close();
  return {
    ...verdict,
    backendsEnded,
    connectionsCut: proxy.accepted - proxy.open,
    storedUnacked: load.storedUnacked,
    streamsCut: load.cuts,
    failures: load.failures.map(({ message }) => message),
    answers,
    recoveryMs,
    connectionsLeft: left,
    ...(await aftermath(server)),
  };
}

function through(proxy: TcpProxy, database: string): string {
  const url = new URL(database);
  url.port = String(proxy.port);
  return url.href;
}

/** The ways in which connections are cut, one after another. */
const WAYS = ['backends', 'reset', 'toServer', 'backends', 'end', 'toClient'] as const;

/** Ends connections in a way; returns how many backends were terminated by Postgres itself. */
async function cutOnce(
  how: (typeof WAYS)[number],
  proxy: TcpProxy,
  database: TestDatabase,
  random: Random,
): Promise<number> {
  if (how === 'backends') return endBackends(database, 0.4);
  if (how === 'reset' || how === 'end') proxy.cut(how);
  else await proxy.cutAfter(random.between(1, 64 * 1024), how);
  return 0;
}

function endBackends(database: TestDatabase, share: number): Promise<number> {
  return asOwner(database, async (client) => {
    const { rowCount } = await client.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and random() < $1`,
      [share],
    );
    return rowCount ?? 0;
  });
}
