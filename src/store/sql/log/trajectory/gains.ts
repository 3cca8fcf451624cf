import { sql } from 'kysely';
import { type Gain, gainOf } from '../../../../domain/gain.ts';
import { addReward } from '../../../../domain/step.ts';
import { rewardsOf } from '../../kit/running_sums.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import { columnOfSegment } from '../read/segment_lookup.ts';

/** A segment, or a branch with the segment that has the last step. */
interface GainRow {
  /** Null for a segment. */
  readonly key: bigint | null;
  readonly branch_point: bigint;
  readonly next_step_number: bigint;
  readonly reward_sum: number | string;
  readonly parent_next: bigint;
  readonly parent_sum: number | string;
  readonly last: bigint;
  readonly longer: bigint;
  readonly first: bigint;
  /** Null for a branch. */
  readonly rewards: string | null;
  readonly sum_before: number | string | null;
}

/**
 * Reads the running sum of the longer trajectory at the end of the shorter one, in one statement and without bodies.
 * Many branches end within few segments of their parent, so each segment is read once.
 */
export async function readGains(
  { engine, namespace }: ReadScope,
  tree: bigint,
  branches: readonly bigint[],
): Promise<ReadonlyMap<bigint, Gain>> {
  if (branches.length === 0) return new Map();
  const trajectories = engine.sql.table('trajectories');
  const step = { tree, trajectory: sql`w.longer`, stepNumber: sql`w.last` };
  const { rows } = await sql<GainRow>`
    with w as materialized (
      select t.key, t.branch_point, t.next_step_number, t.reward_sum,
        p.next_step_number as parent_next, p.reward_sum as parent_sum,
        case when t.next_step_number <= p.next_step_number then p.key else t.key end as longer,
        case when t.next_step_number <= p.next_step_number then t.next_step_number else p.next_step_number end - 1 as last
      from ${trajectories} as t cross join ${trajectories} as p
      where t.tree = ${tree} and ${engine.sql.among(sql.ref('t.key'), branches)} and t.namespace = ${namespace}
        and not t.hidden and p.tree = ${tree} and p.key = t.parent),
    f as materialized (
      select w.*, ${columnOfSegment(engine, 'first_step_number', step)} as first from w where w.last > w.branch_point)
    select f.*, null as rewards, null as sum_before from f
    union all
    select null, null, null, null, null, null, d.longer, null, d.first, s.rewards, s.reward_sum
    from (select distinct longer, first from f) as d cross join ${engine.sql.table('segments')} as s
    where s.tree = ${tree} and s.trajectory = d.longer and s.first_step_number = d.first`.execute(engine.byIndex().db);
  const sums = new Map(rows.flatMap((row) => (row.rewards === null ? [] : [[segmentOf(row), sumsIn(row)] as const])));
  const gains = new Map<bigint, Gain>();
  for (const row of rows) {
    if (row.key === null) continue;
    const sumBefore = sums.get(segmentOf(row))?.(row.last);
    if (sumBefore === undefined) continue;
    const branch = { nextStepNumber: row.next_step_number, rewardSum: readReal(row.reward_sum) };
    const parent = { nextStepNumber: row.parent_next, rewardSum: readReal(row.parent_sum) };
    const gain = gainOf(branch, parent, row.branch_point, sumBefore);
    if (gain !== undefined) gains.set(row.key, gain);
  }
  return gains;
}

function segmentOf({ longer, first }: GainRow): string {
  return `${longer} ${first}`;
}

/** Returns the running sum at each step of a segment. Undefined: the segment does not have the step. */
function sumsIn({ first, rewards, sum_before }: GainRow): (step: bigint) => number | undefined {
  let sum = readReal(sum_before ?? 0);
  const sums = rewardsOf(rewards ?? '[]').map((reward) => {
    sum = addReward(sum, reward);
    return sum;
  });
  return (step) => sums[Number(step - first)];
}
