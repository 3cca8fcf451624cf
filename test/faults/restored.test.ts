import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import pg from 'pg';
import { expect, it } from 'vitest';
import { openOn } from '../store/on_store.ts';
import { RolloutScene } from '../store/rollout_scene.ts';
import { Watcher } from '../store/run_watcher.ts';
import { expectVerified } from '../store/verified.ts';
import { createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { startPostgres } from '../support/postgres.ts';

const run = promisify(execFile);

/** A Postgres with its client programs, from Debian's package `postgresql-15`: the one from npm has no pg_dump. */
const BIN = process.env.STOCK_POSTGRES ?? '/usr/lib/postgresql/15/bin';

/** Before the dump the first cluster is this many transactions ahead of the second one. */
const AHEAD = 5000;
const ROLLOUTS = 300;
const NOTHING = { stages: 0, groups: 0, rollouts: 0 };

it('M5: after pg_dump and pg_restore into a new cluster, a watcher reads each row once, misses no change, and reads nothing again', async () => {
  await using old = await startPostgres({ bin: BIN });
  await using young = await startPostgres({ bin: BIN });
  await using source = await createPostgresDatabase(old.url);
  await using target = await createPostgresDatabase(young.url);
  await endTransactions(source, AHEAD);
  const before = await openOn(source);
  const there = new RolloutScene(before);
  const { run: watched, stage } = await there.place();
  for (let at = 0; at < ROLLOUTS; at += 100) await there.queue(stage, 100, { groupNumber: BigInt(at) });
  const secrets = await before.listTokenSecrets();
  await before.close();
  await dumpAndRestore(source, target);
  expect(await marksAhead(target)).toBeGreaterThan(AHEAD / 2);

  const store = await openOn(target);
  await expectVerified(store);
  // RD12: page tokens of before are accepted.
  expect(await store.listTokenSecrets()).toEqual(secrets);
  const here = new RolloutScene(store, there.namespace);
  const watcher = new Watcher(here, watched);
  expect(await watcher.changed()).toEqual({ stages: 1, groups: 3, rollouts: ROLLOUTS });
  for (let look = 0; look < 3; look += 1) expect(await watcher.changed()).toEqual(NOTHING);
  await here.claims({ runId: watched.id, count: 7 });
  expect(await watcher.changed()).toEqual({ stages: 0, groups: 1, rollouts: 7 });
  expect(await watcher.changed()).toEqual(NOTHING);
  // Transactions of the new cluster reach the marks from the old one: each row of these is read once more, and not
  // again.
  await endTransactions(target, 2 * AHEAD);
  expect(await marksAhead(target)).toBeLessThan(0);
  expect(await watcher.changed()).toEqual({ stages: 1, groups: 3, rollouts: ROLLOUTS - 7 });
  expect(await watcher.changed()).toEqual(NOTHING);
  await here.claims({ runId: watched.id, count: 5 });
  expect((await watcher.changed()).rollouts).toBe(5);
  await store.close();
});

it('M5: after Postgres was killed and recovered, a watcher reads everything once more, whatever the transaction ids', async () => {
  await using server = await startPostgres({ bin: BIN });
  await using database = await createPostgresDatabase(server.url);
  const store = await openOn(database);
  const here = new RolloutScene(store);
  const { run: watched, stage } = await here.place();
  await here.queue(stage, 20);
  const watcher = new Watcher(here, watched);
  await watcher.changed();
  expect(await watcher.changed()).toEqual(NOTHING);
  await server.killAll();
  await server.restart();
  await expect.poll(() => watcher.changed().catch(String), { timeout: 60_000 }).toMatchObject({ rollouts: 20 });
  await expect.poll(() => watcher.changed(), { timeout: 60_000 }).toEqual(NOTHING);
  await expectVerified(store);
  await here.claims({ runId: watched.id, count: 2 });
  expect(await watcher.changed()).toMatchObject({ rollouts: 2 });
  await store.close();
});

async function dumpAndRestore(source: TestDatabase, target: TestDatabase): Promise<void> {
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-dump-'));
  const file = path.join(dir, 'data.dump');
  try {
    await run(path.join(BIN, 'pg_dump'), ['--format=custom', `--file=${file}`, source.adminUrl]);
    await run(path.join(BIN, 'pg_restore'), ['--no-owner', '--exit-on-error', `--dbname=${target.url}`, file]);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

/** Runs this many transactions, each with an id. */
async function endTransactions(database: TestDatabase, count: number): Promise<void> {
  await query(database, `do $$ begin for i in 1..${count} loop perform pg_current_xact_id(); commit; end loop; end $$`);
}

/** How far the marks of rollouts are ahead of the transactions of the cluster. */
async function marksAhead(database: TestDatabase): Promise<number> {
  const [row] = await query(
    database,
    `select max(mark) - pg_snapshot_xmax(pg_current_snapshot())::text::bigint as ahead from anabranch.rollouts`,
  );
  return Number(row?.ahead);
}

async function query({ adminUrl }: TestDatabase, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(adminUrl);
  await client.connect();
  try {
    return (await client.query(text)).rows as Record<string, unknown>[];
  } finally {
    await client.end();
  }
}
