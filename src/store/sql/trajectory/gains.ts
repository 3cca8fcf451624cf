import { sql } from 'kysely';
import { type Gain, gainOf } from '../../../domain/gain.ts';
import { rewardSumAt } from '../step/running_sums.ts';
import { columnOfSegment } from '../step/segment_lookup.ts';
import type { ReadScope } from '../transaction.ts';
import { readReal } from '../values.ts';

interface GainRow {
  readonly key: bigint;
  readonly branch_point: bigint;
  readonly next_step_number: bigint;
  readonly reward_sum: number | string;
  readonly parent_next: bigint;
  readonly parent_sum: number | string;
  readonly last: bigint;
  readonly first_step_number: bigint;
  readonly rewards: string;
  readonly sum_before: number | string;
}

/** Reads the running sum of the longer trajectory at the end of the shorter one, in one statement and without bodies. */
export async function readGains(
  { engine, namespace }: ReadScope,
  tree: bigint,
  branches: readonly bigint[],
): Promise<ReadonlyMap<bigint, Gain>> {
  if (branches.length === 0) return new Map();
  const trajectories = engine.table('trajectories');
  const step = { tree, trajectory: sql`w.longer`, stepNumber: sql`w.last` };
  const { rows } = await sql<GainRow>`
    with w as materialized (
      select t.key, t.branch_point, t.next_step_number, t.reward_sum,
        p.next_step_number as parent_next, p.reward_sum as parent_sum,
        case when t.next_step_number <= p.next_step_number then p.key else t.key end as longer,
        case when t.next_step_number <= p.next_step_number then t.next_step_number else p.next_step_number end - 1 as last
      from ${trajectories} as t cross join ${trajectories} as p
      where t.tree = ${tree} and ${engine.among(sql.ref('t.key'), branches)} and t.namespace = ${namespace}
        and not t.hidden and p.tree = ${tree} and p.key = t.parent)
    select w.*, s.first_step_number, s.rewards, s.reward_sum as sum_before
    from w cross join ${engine.table('segments')} as s
    where w.last > w.branch_point and s.tree = ${tree} and s.trajectory = w.longer and s.next_step_number > w.last
      and s.first_step_number = ${columnOfSegment(engine, 'first_step_number', step)}`.execute(engine.byIndex().db);
  const gains = new Map<bigint, Gain>();
  for (const row of rows) {
    const branch = { nextStepNumber: row.next_step_number, rewardSum: readReal(row.reward_sum) };
    const parent = { nextStepNumber: row.parent_next, rewardSum: readReal(row.parent_sum) };
    const sumBefore = rewardSumAt({ ...row, reward_sum: row.sum_before }, row.last);
    const gain = gainOf(branch, parent, row.branch_point, sumBefore);
    if (gain !== undefined) gains.set(row.key, gain);
  }
  return gains;
}
