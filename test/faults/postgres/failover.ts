/** Kills the primary and promotes its standby, repeatedly, under writers that never pause. */
import process from 'node:process';
import pg from 'pg';
import { connectClient } from '../../../src/client/index.ts';
import { createPostgresDatabase, type TestDatabase } from '../../support/database.ts';
import { freePort } from '../../support/free_port.ts';
import { type PostgresServer, startPostgres, startReplica } from '../../support/postgres.ts';
import { checkAcked, type Verdict } from '../acked/check.ts';
import { type Load, startLoad } from '../acked/load.ts';
import type { Random } from '../random.ts';
import { spawnMergingServer } from '../spawn-merging.ts';
import { type Aftermath, aftermath } from './killing.ts';
import { type Answer, untilServed } from './outage.ts';

/** A Postgres with pg_basebackup, from Debian's package `postgresql-15`. */
const BIN = process.env.STOCK_POSTGRES ?? '/usr/lib/postgresql/15/bin';
const SYNCHRONOUS = { synchronous_standby_names: '*' };

export interface Promoting {
  readonly promotions: number;
  readonly writers: number;
  readonly random: Random;
  /** Commits wait for the standby. */
  readonly synchronous: boolean;
  /** The standby receives nothing more for a while before the primary is killed. */
  readonly cutOff?: boolean;
}

export interface Promoted extends Verdict, Aftermath {
  /** Unacked steps when a primary was killed; the fewest of all. */
  readonly inFlight: number;
  readonly storedUnacked: number;
  readonly cuts: number;
  /** Errors that users of the client helper would have seen. */
  readonly failures: readonly string[];
  /** Answers after promotions, until the server served again. */
  readonly answers: readonly Answer[];
  /** The longest time from the promotion, or from the return of a synchronous standby, to the server serving again. */
  readonly recoveryMs: number;
  /** Log lines of the server about another timeline. */
  readonly noticed: number;
}

export async function promoteStandbys(options: Promoting): Promise<Promoted> {
  const ports = [await freePort(), await freePort()] as const;
  await using pair = await startPair(ports, options.synchronous);
  // Goes with the clusters.
  const database = await createPostgresDatabase(pair.primary.url);
  await pair.begin();
  const url = database.url.replace(/127\.0\.0\.1:\d+/u, ports.map((port) => `127.0.0.1:${port}`).join());
  await using server = await spawnMergingServer({ database: url });
  const client = connectClient({ address: server.url });
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'asked for' });
  const load = await startLoad({ address: server.url, writers: options.writers });
  const answers: Answer[] = [];
  const inFlight: number[] = [];
  let recoveryMs = 0;
  for (let promotion = 0; promotion < options.promotions; promotion += 1) {
    await fallBehind(pair, load, options);
    inFlight.push(load.inFlight);
    await pair.failOver();
    const served = await untilServed(client, trajectory!.id);
    answers.push(...served.answers);
    recoveryMs = Math.max(recoveryMs, served.ms);
  }
  await load.everyone();
  const verdict = await checkAcked(client, at(database, pair.primary), await load.stop());
  client.close();
  return {
    ...verdict,
    inFlight: Math.min(...inFlight),
    storedUnacked: load.storedUnacked,
    cuts: load.cuts,
    failures: load.failures.map(({ message }) => message),
    answers,
    recoveryMs,
    noticed: server.output().split('the database has another timeline').length - 1,
    ...(await aftermath(server)),
  };
}

/** Waits for some appends, the last of which only the primary has if the standby is cut off. */
async function fallBehind(pair: Pair, load: Load, { random, cutOff = false }: Promoting): Promise<void> {
  await load.everyone();
  if (cutOff) await pair.cutOff();
  await load.progress(random.between(50, 500));
}

/** The database as it is on a server. */
function at(database: TestDatabase, { url }: PostgresServer): TestDatabase {
  const { host } = new URL(url);
  const moved = (text: string) => Object.assign(new URL(text), { host }).href;
  return { ...database, url: moved(database.url), adminUrl: moved(database.adminUrl) };
}

interface Pair extends AsyncDisposable {
  readonly primary: PostgresServer;
  /** From now on, commits wait for the standby if they are to. */
  begin(): Promise<void>;
  /** Ends the replication to the standby. */
  cutOff(): Promise<void>;
  /**
   * Kills the primary and promotes the standby. If commits wait for a standby, starts a new one at the address of the
   * old primary.
   */
  failOver(): Promise<void>;
}

async function startPair(ports: readonly [number, number], synchronous: boolean): Promise<Pair> {
  const settings = synchronous ? SYNCHRONOUS : {};
  let primary = await startPostgres({ bin: BIN, port: ports[0] });
  let standby: PostgresServer | undefined;
  const stop = async () => {
    await standby?.stop();
    await primary.stop();
  };
  return {
    get primary() {
      return primary;
    },
    async begin() {
      standby = await startReplica(primary, { bin: BIN, port: ports[1], settings });
      if (synchronous) await set(primary, SYNCHRONOUS);
    },
    async cutOff() {
      await set(standby!, { primary_conninfo: '' });
      await until(primary, 'select not exists (select from pg_stat_replication) as done');
    },
    async failOver() {
      await primary.killAll();
      await tell(standby!, 'select pg_promote()');
      const left = primary;
      primary = standby!;
      await left.stop();
      standby = undefined;
      // Without one, commits would wait.
      if (synchronous)
        standby = await startReplica(primary, { bin: BIN, port: Number(new URL(left.url).port), settings });
    },
    [Symbol.asyncDispose]: stop,
  };
}

async function set(server: PostgresServer, settings: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, value] of Object.entries(settings)) await tell(server, `alter system set ${name} = '${value}'`);
  await tell(server, 'select pg_reload_conf()');
}

async function until(server: PostgresServer, question: string): Promise<void> {
  for (;;) if ((await tell(server, question))[0]?.done === true) return;
}

export async function tell({ url }: PostgresServer, statement: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    return (await client.query(statement)).rows as Record<string, unknown>[];
  } finally {
    await client.end();
  }
}
