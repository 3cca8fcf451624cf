import { once } from 'node:events';
import pg from 'pg';
import { type Logger, pino } from 'pino';
import { afterEach, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import { Hosts } from '../../src/store/postgres_access/hosts.ts';
import { createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { type PostgresServer, startPostgres, startStandby } from '../support/postgres.ts';
import { wordStep } from '../support/steps.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { openOn, refusedOpen } from './on_store.ts';
import { refusalOf, Scene } from './scene.ts';

const WAIT = { timeout: 15_000 };
const LOGIN = { user: 'failing_over', password: 'unused' };

function recordLog(): { readonly logger: Logger; readonly warnings: () => string[] } {
  const lines: { level: number; msg: string }[] = [];
  const logger = pino({ level: 'info' }, { write: (line) => void lines.push(JSON.parse(line)) });
  return { logger, warnings: () => lines.filter(({ level }) => level >= 40).map(({ msg }) => msg) };
}

/** Only Postgres has hosts. */
describe('several hosts and failovers, on postgres', () => {
  const ends: (() => Promise<void>)[] = [];
  const later = <T extends AsyncDisposable>(resource: T): T => {
    ends.push(async () => resource[Symbol.asyncDispose]());
    return resource;
  };
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end();
  });

  async function open(url: string, logger = recordLog().logger): Promise<Store> {
    const store = await openStore({ engine: 'postgres', url }, { logger });
    ends.push(() => store.close());
    return store;
  }

  /** A primary with a database that has the schema, and a standby. */
  async function startPair(): Promise<{ primary: PostgresServer; standby: PostgresServer; database: TestDatabase }> {
    const primary = later(await startPostgres());
    const database = await createPostgresDatabase(primary.url, LOGIN);
    await (await openOn(database)).close();
    return { primary, standby: later(await startStandby(primary)), database };
  }

  /** A store behind an address that can move from a primary to its standby, with a trajectory that both have. */
  async function startBehindAddress() {
    const { primary, standby, database } = await startPair();
    const proxy = later(await startTcpProxy({ path: `${primary.dir}/.s.PGSQL.5432` }));
    const store = await open(through(proxy, database));
    let replacements = 0;
    store.onReplaced(() => {
      replacements += 1;
    });
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    await replicated(primary, standby);
    const move = () => {
      proxy.retarget({ path: `${standby.dir}/.s.PGSQL.5432` });
      proxy.cut();
    };
    return { standby, store, scene, made, proxy, move, replacements: () => replacements };
  }

  it('A15: of several hosts the one that accepts writes is used, wherever it is in the list', async () => {
    const { primary, standby, database } = await startPair();
    for (const hosts of [
      [primary, standby],
      [standby, primary],
    ]) {
      const scene = new Scene(await open(withHosts(database, hosts)));
      const made = await scene.createWith(['a']);
      expect(await scene.words(made)).toEqual(['a']);
    }
  });

  it('A15: without a host that accepts writes, the start fails in one line that says why of each host', async () => {
    const { primary, standby, database } = await startPair();
    await primary.killAll();
    const url = withHosts(database, [primary, standby]);
    const error = await refusedOpen(openOn({ engine: 'postgres', url }));
    expect(error.name).toBe('StoreOpenError');
    expect(error.message).toMatch(
      /^No host in the URL of the database accepts writes \(\S+ cannot be used \(.*\), \S+ is a standby\): promote/,
    );
    expect(error.message).not.toContain('\n');
  });

  it('A15: while no host accepts writes, calls fail with DATABASE_UNAVAILABLE; after a promotion they succeed', async () => {
    const { primary, standby, database } = await startPair();
    const log = recordLog();
    const store = await open(withHosts(database, [primary, standby]), log.logger);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    await replicated(primary, standby);
    await primary.killAll();
    for (const call of [() => scene.get(made.id), () => scene.append(made, [wordStep(1n, 'b')])])
      expect(await refusalOf(call())).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    await expect
      .poll(async () => (await refusalOf(scene.get(made.id))).message, WAIT)
      .toMatch(/No host in the URL of the database accepts writes/);
    await promote(standby);
    await expect.poll(() => scene.words(made).catch(String), WAIT).toEqual(['a']);
    await scene.append(made, [wordStep(1n, 'b')]);
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(log.warnings().filter((msg) => /another timeline/.test(msg))).toHaveLength(1);
  });

  it('A15: a primary that has become read-only is left for the one that accepts writes, with all connections', async () => {
    const { primary, standby, database } = await startPair();
    const scene = new Scene(await open(withHosts(database, [primary, standby])));
    const made = await scene.createWith(['a']);
    await replicated(primary, standby);
    await promote(standby);
    await tell(primary, 'alter system set default_transaction_read_only = on');
    await tell(primary, 'select pg_reload_conf()');
    await expect.poll(() => scene.append(made, [wordStep(1n, 'b')]).then(() => 'acked', String), WAIT).toBe('acked');
    expect(await scene.words(made)).toEqual(['a', 'b']);
    // Reads use all connections once, and each is closed before its next use.
    await expect
      .poll(async () => {
        await Promise.all(Array.from({ length: 20 }, () => scene.get(made.id)));
        return connectionsTo(primary);
      }, WAIT)
      .toBe(0);
  });

  it('A15: of two primaries the one with the newer timeline is used, and later none with an older one', async () => {
    const { primary, standby, database } = await startPair();
    await promote(standby);
    const hosts = new Hosts(withHosts(database, [primary, standby]));
    expect((await hosts.choose()).address).toContain(standby.dir);
    await standby.killAll();
    hosts.doubt();
    await expect(hosts.choose()).rejects.toThrow(/was replaced by a standby that was promoted/);
  });

  it('A15: a new timeline closes all connections, and appends continue from what the new primary has', async () => {
    const { primary, standby, database } = await startPair();
    const proxy = later(await startTcpProxy({ path: `${primary.dir}/.s.PGSQL.5432` }));
    const log = recordLog();
    const store = await open(through(proxy, database), log.logger);
    let replacements = 0;
    store.onReplaced(() => {
      replacements += 1;
    });
    const scene = new Scene(store);
    const made = await scene.createWith(['a', 'b']);
    await replicated(primary, standby);
    await promote(standby);
    // Only the old primary gets this step, and the store keeps the end of the trajectory in memory.
    await scene.append(made, [wordStep(2n, 'lost')]);
    proxy.retarget({ path: `${standby.dir}/.s.PGSQL.5432` });
    expect(await connectionsTo(primary)).toBeGreaterThan(0);
    // More calls than there are idle connections need new ones.
    await Promise.allSettled(Array.from({ length: 40 }, () => scene.get(made.id)));
    await expect.poll(() => replacements, WAIT).toBe(1);
    // The listener is no connection of the pool.
    await expect.poll(() => connectionsTo(primary), WAIT).toBe(0);
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(await refusalOf(scene.append(made, [wordStep(3n, 'd')]))).toMatchObject({ reason: 'STEP_GAP' });
    await scene.append(made, [wordStep(2n, 'c')]);
    expect(await scene.words(made)).toEqual(['a', 'b', 'c']);
    expect(log.warnings().filter((msg) => /another timeline/.test(msg))).toHaveLength(1);
  });

  it("A15: a call that began before fails at its next statement: what it has read may be another's now", async () => {
    const { standby, store, scene, made, move, replacements } = await startBehindAddress();
    const begin = () => store.within({ signal: new AbortController().signal });
    const call = begin();
    const read = (within: Store) => within.getTrajectory(scene.namespace, made.id);
    expect(await read(call)).toMatchObject({ nextStepNumber: 1n });
    await promote(standby);
    move();
    await expect.poll(() => scene.words(made).catch(String), WAIT).toEqual(['a']);
    expect(replacements()).toBe(1);
    expect(await refusalOf(read(call))).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    expect(await read(begin())).toMatchObject({ nextStepNumber: 1n });
  });

  it('A15: a primary that was replaced is left at once when any connection finds the new one', async () => {
    const { primary, standby, database } = await startPair();
    const scene = new Scene(await open(withHosts(database, [primary, standby])));
    const made = await scene.createWith(['a']);
    await replicated(primary, standby);
    await promote(standby);
    expect(await connectionsTo(primary)).toBeGreaterThan(0);
    // The one that listens is no connection of the pool.
    const ofListener = `from pg_stat_activity where application_name = 'anabranch listener'`;
    await tell(primary, `select pg_terminate_backend(pid) ${ofListener}`);
    await expect.poll(() => connectionsTo(primary), WAIT).toBe(0);
    await scene.append(made, [wordStep(1n, 'b')]);
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(await connectionsTo(primary)).toBe(0);
    await expect.poll(async () => (await tell(standby, `select 1 ${ofListener}`)).length, WAIT).toBe(1);
  });

  it('A15: a standby behind the address of the primary is another database, and the same one when it is promoted', async () => {
    const { standby, scene, made, proxy, move, replacements } = await startBehindAddress();
    move();
    await expect.poll(() => scene.words(made).catch(String), WAIT).toEqual(['a']);
    expect(replacements()).toBe(1);
    await promote(standby);
    await expect.poll(() => scene.append(made, [wordStep(1n, 'b')]).then(() => 'acked', String), WAIT).toBe('acked');
    proxy.cut();
    await expect.poll(() => scene.words(made).catch(String), WAIT).toEqual(['a', 'b']);
    expect(replacements()).toBe(1);
  });

  it('A15: another cluster behind the same URL gets nothing of what was kept of the first one', async () => {
    const log = recordLog();
    const [first, second] = [later(await startPostgres()), later(await startPostgres({ isNew: true }))];
    const proxy = later(await startTcpProxy({ path: `${first.dir}/.s.PGSQL.5432` }));
    const database = await createPostgresDatabase(first.url, LOGIN);
    const store = await open(through(proxy, database), log.logger);
    const scene = new Scene(store);
    const made = await scene.createWith(['first']);
    const elsewhere = await createPostgresDatabase(second.url, LOGIN);
    const there = await openOn(elsewhere);
    // The same row keys, for another trajectory that is as long.
    const other = await new Scene(there, scene.namespace).createWith(['second', 'second']);
    expect(other.ref).toEqual(made.ref);
    await there.close();
    const listener = new pg.Client(database.adminUrl);
    await listener.connect();
    await listener.query('listen anabranch_changes');
    const hinted = once(listener, 'notification');
    // Its end is kept now.
    await scene.append(made, [wordStep(1n, 'first')]);
    // Otherwise the hint needs a connection of the pool after the cut.
    await hinted;
    await listener.end();
    const cut = proxy.open;
    proxy.retarget({ path: `${second.dir}/.s.PGSQL.5432` });
    proxy.cut();
    await expect
      .poll(() => log.warnings().filter((msg) => /was lost/.test(msg)).length, WAIT)
      .toBeGreaterThanOrEqual(cut);
    // Decided before its connection is made.
    const stray = scene.append(made, [wordStep(2n, 'stray')]);
    expect(await refusalOf(stray)).toMatchObject({ reason: 'TRAJECTORY_NOT_FOUND' });
    expect(await scene.words(other)).toEqual(['second', 'second']);
    await scene.append(other, [wordStep(2n, 'more')]);
    // Now the end of the other one is kept.
    expect(await refusalOf(scene.append(made, [wordStep(3n, 'stray')]))).toMatchObject({
      reason: 'TRAJECTORY_NOT_FOUND',
    });
    expect(await scene.words(other)).toEqual(['second', 'second', 'more']);
    expect(log.warnings().filter((msg) => /another cluster/.test(msg))).toHaveLength(1);
  });

  it('D8: a commit whose wait for a synchronous standby is cancelled is not acked', async () => {
    const primary = later(await startPostgres());
    const database = await createPostgresDatabase(primary.url);
    const scene = new Scene(await open(database.url));
    const made = await scene.createWith(['a']);
    await tell(primary, `alter system set synchronous_standby_names = 'nobody'`);
    await tell(primary, 'select pg_reload_conf()');
    const appended = refusalOf(scene.append(made, [wordStep(1n, 'b')]));
    const cancel = `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`;
    await expect.poll(async () => (await tell(primary, cancel)).length, WAIT).toBe(1);
    expect(await appended).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    await tell(primary, 'alter system reset synchronous_standby_names');
    await tell(primary, 'select pg_reload_conf()');
    await expect
      .poll(() => scene.append(made, [wordStep(1n, 'b')]).then(({ nextStepNumber }) => nextStepNumber, String), WAIT)
      .toBe(2n);
  });

  it('A15: a role that may not see the timeline gets one warning, and several hosts are used all the same', async () => {
    const { primary, standby, database } = await startPair();
    const inside = Object.assign(new URL(primary.url), { pathname: `/${LOGIN.user}` }).href;
    await tell({ url: inside }, 'revoke execute on function pg_control_system() from public');
    await replicated(primary, standby);
    const log = recordLog();
    const scene = new Scene(await open(withHosts(database, [standby, primary]), log.logger));
    const made = await scene.createWith(['a']);
    await Promise.all(Array.from({ length: 20 }, () => scene.get(made.id)));
    expect(log.warnings()).toEqual([expect.stringContaining('may not see the timeline')]);
    await replicated(primary, standby);
    await primary.killAll();
    await promote(standby);
    await expect.poll(() => scene.words(made).catch(String), WAIT).toEqual(['a']);
    await scene.append(made, [wordStep(1n, 'b')]);
    expect(log.warnings().filter((msg) => /another cluster/.test(msg))).toHaveLength(1);
  });
});

/** The database as its role sees it at several servers, which listen on sockets. */
function withHosts(database: TestDatabase, servers: readonly PostgresServer[]): string {
  const url = new URL(database.url);
  url.searchParams.set('host', servers.map(({ dir }) => dir).join());
  return url.href;
}

function through({ port }: TcpProxy, database: TestDatabase): string {
  const url = Object.assign(new URL(database.url), { search: '' });
  url.host = `127.0.0.1:${port}`;
  return url.href;
}

async function promote(standby: PostgresServer): Promise<void> {
  await tell(standby, 'select pg_promote()');
}

async function replicated(primary: PostgresServer, standby: PostgresServer): Promise<void> {
  const [row] = await tell(primary, 'select pg_current_wal_lsn() as lsn');
  const question = `select pg_last_wal_replay_lsn() >= '${row?.lsn}' as done`;
  await expect.poll(async () => (await tell(standby, question))[0]?.done, WAIT).toBe(true);
}

async function connectionsTo(server: PostgresServer): Promise<number> {
  const [row] = await tell(
    server,
    `select count(*)::int as n from pg_stat_activity where application_name = 'anabranch'`,
  );
  return Number(row?.n);
}

async function tell({ url }: Pick<PostgresServer, 'url'>, statement: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    return (await client.query(statement)).rows as Record<string, unknown>[];
  } finally {
    await client.end();
  }
}
