import { type RawBuilder, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { StorageCheck, StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Tables } from '../../kit/tables.ts';
import { isSet } from '../../kit/values.ts';
import { placeKey, sumsAt } from '../../log/read/sums_at.ts';
import { MOST_FAULTS } from './part.ts';
import type { CheckedTrajectory } from './trajectory.ts';

/** Trajectories of one statement. */
const PAGE = 64;

interface HeadRow extends TrajectoryRef {
  readonly namespace: string;
  readonly id: string;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
  readonly depth: bigint;
  readonly next_step_number: bigint;
  readonly purging: boolean | bigint;
  readonly status: string;
  readonly last_status: string | null;
  readonly parent_namespace: string | null;
  readonly parent_begin: bigint | null;
  readonly parent_end: bigint | null;
  readonly parent_depth: bigint | null;
}

export interface HeadsPage {
  /** Trajectories in order of tree and key. */
  readonly trajectories: readonly (CheckedTrajectory & { readonly steps: bigint })[];
  readonly faults: readonly StorageFault[];
  /** Where the next page begins. Undefined if there is none. */
  readonly after: TrajectoryRef | undefined;
}

/** Checks rows of trajectories, apart from their steps, and whether other tables have rows of no trajectory. */
export async function checkHeads(engine: Engine, after: TrajectoryRef): Promise<HeadsPage> {
  const rows = await readHeads(engine, after);
  const last = rows.length < PAGE ? undefined : rows.at(-1);
  const isWithin = (alias: string, key: string) => {
    const place = sql`(${sql.ref(`${alias}.tree`)}, ${sql.ref(`${alias}.${key}`)})`;
    const upTo = last === undefined ? sql`` : sql`and ${place} <= (${last.tree}, ${last.key})`;
    return sql`${place} > (${after.tree}, ${after.key}) ${upTo}`;
  };
  const faults = [
    ...rows.flatMap(headFaults),
    ...(await strayTags(engine, isWithin('t', 'key'))),
    ...(await Promise.all(STEP_TABLES.map((table) => strayRows(engine, table, isWithin('x', 'trajectory'))))).flat(),
  ];
  const starts = await sumsAt({ engine, db: engine.db }, rows.flatMap(startOf));
  const trajectories = rows.map((row) => {
    const { tree, key, id, next_step_number, branch_point } = row;
    const [start] = startOf(row);
    const startRewardSum = start === undefined ? 0 : starts.get(placeKey(start))?.rewardSum;
    return { tree, key, id, startRewardSum, steps: next_step_number - beginAfter(branch_point) };
  });
  return { trajectories, faults, after: last };
}

function startOf({ tree, parent, branch_point: point }: HeadRow) {
  return parent === null || point === null ? [] : [{ tree, owner: parent, stepNumber: point }];
}

function beginAfter(branchPoint: bigint | null): bigint {
  return branchPoint === null ? 0n : branchPoint + 1n;
}

async function readHeads(engine: Engine, { tree, key }: TrajectoryRef): Promise<readonly HeadRow[]> {
  const trajectories = engine.sql.table('trajectories');
  const { rows } = await sql<HeadRow>`
    select t.tree, t.key, t.namespace, cast(t.id as text) as id, t.parent, t.branch_point, t.depth, t.next_step_number,
      t.purging, t.status, p.namespace as parent_namespace, coalesce(p.branch_point + 1, 0) as parent_begin,
      p.next_step_number as parent_end, p.depth as parent_depth,
      (select c.new_status from ${engine.sql.table('status_changes')} as c
        where c.tree = t.tree and c.entity_kind = 'TRAJECTORY' and c.entity = t.key
        order by c.ordinal desc limit 1) as last_status
    from ${trajectories} as t left join ${trajectories} as p on p.tree = t.tree and p.key = t.parent
    where (t.tree, t.key) > (${tree}, ${key}) order by t.tree, t.key limit ${sql.lit(PAGE)}`.execute(engine.db);
  return rows;
}

function headFaults(row: HeadRow): StorageFault[] {
  const { id, namespace, tree, key, parent, branch_point: point, depth, next_step_number: end } = row;
  const faults: StorageFault[] = [];
  const report = (check: StorageCheck, message: string) =>
    faults.push({ check, namespace, trajectoryId: id, message: `trajectory ${id}: ${message}` });
  if (parent === null) {
    if (tree !== key || point !== null || depth !== 0n) report('LINEAGE', 'it has no parent, and is no root');
  } else if (row.parent_namespace === null || row.parent_end === null || row.parent_begin === null) {
    report('LINEAGE', 'its parent does not exist');
  } else if (row.parent_namespace !== namespace) {
    report('LINEAGE', 'its parent is of another namespace');
  } else {
    if (point === null || point < row.parent_begin || point >= row.parent_end) {
      report('LINEAGE', `its branch point ${point} is no step of its parent`);
    }
    if (depth !== (row.parent_depth ?? 0n) + 1n) report('LINEAGE', `its depth is ${depth}`);
  }
  if (end < beginAfter(point)) report('LINEAGE', `it ends at step ${end}, before it begins`);
  if (!isSet(row.purging) && row.last_status !== row.status) {
    report('HISTORY', `its status is ${row.status}, and the last one of its history ${row.last_status ?? 'missing'}`);
  }
  return faults;
}

async function strayTags(engine: Engine, within: RawBuilder<unknown>): Promise<StorageFault[]> {
  const { rows } = await sql<{ id: string; namespace: string; name: string; step_number: bigint }>`
    select cast(t.id as text) as id, t.namespace, g.name, g.step_number
    from ${engine.sql.table('trajectories')} as t
    cross join ${engine.sql.table('tags')} as g
    where ${within} and g.tree = t.tree and g.trajectory = t.key
      and (g.step_number < 0 or g.step_number >= t.next_step_number or g.namespace <> t.namespace)
    limit ${sql.lit(MOST_FAULTS)}`.execute(engine.db);
  return rows.map(({ id, namespace, name, step_number: step }) => ({
    check: 'TAGS',
    namespace,
    trajectoryId: id,
    firstStepNumber: step,
    nextStepNumber: step + 1n,
    message: `trajectory ${id}: the tag "${name}" points to step ${step}, which it does not have, or is of another namespace`,
  }));
}

/** Tables whose rows belong to trajectories. */
const STEP_TABLES = [
  'segments',
  'state_refs',
  'attached_states',
  'step_scores',
  'tags',
] as const satisfies readonly (keyof Tables)[];

async function strayRows(
  engine: Engine,
  table: (typeof STEP_TABLES)[number],
  within: RawBuilder<unknown>,
): Promise<StorageFault[]> {
  const { rows } = await sql<TrajectoryRef & { namespace: string }>`
    select distinct x.tree, x.trajectory as key, x.namespace from ${engine.sql.table(table)} as x
    where ${within} and not exists (select 1 from ${engine.sql.table('trajectories')} as t
      where t.tree = x.tree and t.key = x.trajectory)
    limit ${sql.lit(MOST_FAULTS)}`.execute(engine.db);
  return rows.map(({ tree, key, namespace }) => ({
    check: 'TILING',
    namespace,
    message: `the table ${table} has rows of a trajectory that does not exist (tree ${tree}, key ${key})`,
  }));
}
