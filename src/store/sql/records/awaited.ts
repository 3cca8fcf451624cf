import { type RawBuilder, type SqlBool, sql } from 'kysely';
import type { TreeRange } from '../../../domain/lineage.ts';
import type { AwaitedRows, ChangedRows } from '../../contract/change.ts';
import type { Horizon } from '../../contract/run.ts';
import type { Engine } from '../kit/engine.ts';
import { padded } from '../kit/kept_queries.ts';
import { IS_OPEN } from './claim/queue.ts';
import { IS_LIVE } from './rollout/rows.ts';

/** Tables whose rows have a mark and belong to a run. */
const MARKED = ['stages', 'groups', 'rollouts'] as const;

interface Found {
  readonly kind: 'trajectory' | 'run' | 'queue' | 'horizon';
  readonly key: bigint;
  readonly changed: number;
  readonly text: string;
}

/**
 * Finds what has changed of the rows that an instance waits for: one statement, which reads a few rows by key for each
 * of them. Followed trajectories are compared with what is known, runs by their marks.
 */
export async function findChanges(engine: Engine, awaited: AwaitedRows): Promise<ChangedRows> {
  const { trajectories, runs, queues, since } = awaited;
  const ranges = trajectories.map(({ ref, end }) => ({ tree: ref.tree, key: ref.key, from: end, to: 0n }));
  const parts = [
    sql`select 'horizon' as kind, 0 as key, 0 as changed, ${engine.changes.horizon} as text`,
    ...(trajectories.length > 0 ? [changedTrajectories(engine, ranges)] : []),
    ...(runs.length > 0 ? [awaitedRuns(engine, runs, since)] : []),
    ...padded(queues.map((namespace, i) => pendingIn(engine, namespace, i))),
  ];
  const query = sql<Found>`${sql.join(parts, sql` union all `)}`;
  const rows = (await query.execute(engine.db)).rows;
  const of = (kind: Found['kind']) => rows.filter((row) => row.kind === kind);
  const horizon = engine.changes.horizonOf(of('horizon')[0]!.text);
  const isComparable = since?.era === horizon.era;
  return {
    trajectories: of('trajectory').map(({ key }) => BigInt(key)),
    runs: of('run').map(({ key, changed, text }) => ({
      key: BigInt(key),
      changed: !isComparable || Number(changed) === 1,
      derived: text,
    })),
    queues: [...new Set(of('queue').map(({ key }) => queues[Number(key)]!))],
    horizon,
  };
}

/** An index serves each row, because the ranges are joined by the primary key of trajectories. */
function changedTrajectories(engine: Engine, ranges: readonly TreeRange[]): RawBuilder<unknown> {
  return sql`select * from (with w(tree, key, known, unused) as materialized (${engine.sql.selectRanges(ranges)})
    select 'trajectory', w.key, 1, '' from w
    left join ${engine.sql.table('trajectories')} as t on t.tree = w.tree and t.key = w.key
    where t.key is null or t.hidden = ${1} or t.next_step_number <> w.known or t.status <> 'RUNNING') as changed`;
}

/**
 * Values that watchers of a run see and that set no mark: the ends of its main trajectory and of those of its live
 * rollouts, whether it is stale, and the name of its experiment.
 */
function awaitedRuns(engine: Engine, runs: readonly bigint[], since: Horizon | undefined): RawBuilder<unknown> {
  const { table } = engine.sql;
  const later = (row: string): RawBuilder<SqlBool> =>
    since === undefined
      ? sql`1 = 1`
      : sql`(${sql.join(engine.changes.since(sql.ref(`${row}.mark`), since), sql` or `)})`;
  const others = MARKED.map(
    (name) => sql`exists (select 1 from ${table(name)} as c where c.run = u.key and ${later('c')})`,
  );
  const live = sql`(select coalesce(sum(t.next_step_number), 0) from ${table('rollouts')} as r
    join ${table('trajectories')} as t on t.tree = r.tree and t.key = r.trajectory
    where r.run = u.key and ${IS_LIVE})`;
  return sql`select 'run', u.key, case when u.hidden = ${1} or ${later('u')} or ${sql.join(others, sql` or `)} then 1 else 0 end,
    cast(${live} as text) || ' ' || coalesce(cast(m.next_step_number as text), '') || ' ' ||
      case when u.stale_time is not null and u.stale_time < ${engine.sql.hoursAgo(0)} then 'stale' else '' end || ' ' || x.name
    from ${table('runs')} as u
    join ${table('experiments')} as x on x.key = u.experiment
    left join ${table('trajectories')} as m on m.tree = u.main_tree and m.key = u.main_trajectory
    where ${engine.sql.among(sql.ref('u.key'), runs)}`;
}

function pendingIn(engine: Engine, namespace: string, index: number): RawBuilder<unknown> {
  const { table } = engine.sql;
  return sql`select 'queue', ${sql.lit(index)}, 1, '' where exists (select 1 from ${table('stages')} as s
    join ${table('runs')} as u on u.key = s.run where s.namespace = ${namespace} and ${IS_OPEN}
    and exists (select 1 from ${table('rollouts')} as r where r.stage = s.key and r.status = 'PENDING'))`;
}
