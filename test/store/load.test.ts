import { expect, it } from 'vitest';
import { nameOf, StatementTimes } from '../../src/store/sql/kit/statement_times.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';

describeStore('the load of a store', (on) => {
  it('V8: PENDING rollouts, the age of the oldest, and leases are counted', async () => {
    const none = { pending: 0, oldestPendingSeconds: 0, liveLeases: 0, endedLeases: 0 };
    expect(await on.store.countWork()).toEqual(none);
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    await scene.queue(stage, 5);
    const [ended] = await scene.claims({ count: 3, leaseMs: 60_000 });
    const ago = (column: string) => on.sql.earlier(column, 3600).replaceAll("'--", "'+");
    await on.sql.rows(
      `update rollouts set lease_end_time = ${ago('lease_end_time')} where key = ${ended!.rollout.key}`,
    );
    await on.sql.rows(`update rollouts set create_time = ${ago('create_time')} where status = 'PENDING'`);
    const counted = await on.store.countWork();
    expect(counted).toMatchObject({ pending: 2, liveLeases: 2, endedLeases: 1 });
    expect(counted.oldestPendingSeconds).toBeGreaterThan(3599);
    expect(counted.oldestPendingSeconds).toBeLessThan(3700);
  });

  it('V8: statements are counted by name, and connections by pool', async () => {
    const { pools, statements, listening, walBytes } = on.store.load();
    const isSqlite = on.engine === 'sqlite';
    expect(Object.keys(pools)).toEqual(isSqlite ? ['reads', 'writes'] : ['shared', 'appends']);
    for (const { used, most, waiting } of Object.values(pools)) {
      expect([used, waiting]).toEqual([0, 0]);
      expect(most).toBeGreaterThan(0);
    }
    expect([listening, walBytes === undefined]).toEqual(isSqlite ? [undefined, false] : [true, true]);
    const names = statements.map(({ name }) => name);
    for (const name of ['begin', 'commit', 'select rollouts']) expect(names).toContain(name);
    for (const { count, seconds, buckets } of statements) {
      expect(seconds).toBeGreaterThan(0);
      expect(buckets.reduce((sum, each) => sum + each, 0)).toBeLessThanOrEqual(count);
    }
  });
});

it.each([
  ['select "a"."key" from "anabranch"."rollouts" as "a" for update skip locked', 'select rollouts'],
  ['select pg_notify($1, $2)', 'select'],
  ['select x from unnest($1) as t (x) inner join y on true where exists (select 1 from runs)', 'select runs'],
  ['insert into "segments" ("tree") values (?) on conflict do update set x = 1', 'insert segments'],
  [
    'with moved as (update anabranch.trajectories set a = 1 returning *) insert into segments select * from moved',
    'update trajectories',
  ],
  ['with t as (select 1 from "states") select * from t', 'select states'],
  ['delete from tags where name = ?', 'delete tags'],
  ['copy anabranch.segments from stdin', 'copy segments'],
  ['begin; set local x = 1', 'begin'],
  ['start transaction read only', 'begin'],
  ['update "DROP TABLE" set x = 1', 'update'],
  ['pragma wal_checkpoint(passive)', 'other'],
  ['', 'other'],
])('V8: the name of %s is %s, of a closed set', (text, name) => {
  expect(nameOf(text)).toBe(name);
});

it('V8: the texts of statements that are remembered are bounded, and all are counted', () => {
  const times = new StatementTimes();
  for (let i = 0; i < 5000; i += 1) times.note(`select ${i} from runs`, 2);
  times.note('select 1 from runs', 10_000);
  expect(times.all).toMatchObject([{ name: 'select runs', count: 5001, buckets: [0, 5000, 0, 0, 0, 0] }]);
});
