import { type RawBuilder, sql } from 'kysely';
import type { TaskGroups } from '../../../../domain/summary.ts';
import type { Engine } from '../../kit/engine.ts';
import { columnsOf, groupedBy, places, type ValueColumns } from './values.ts';

/** Rollouts of one combination and task whose groups have the same outcome. */
export interface GroupsRow extends ValueColumns {
  readonly task: bigint;
  readonly groups: bigint;
  readonly trials: bigint;
  readonly successes: bigint;
  /** For a CONTINUE group: 1 if it counts, else 0. Null for a CANCEL_PENDING group, which has the columns below. */
  readonly counts: bigint | number | null;
  readonly siblings: bigint | null;
  readonly first_success: bigint | null;
  readonly first_unknown: bigint | null;
}

/**
 * Counts the rollouts of tasks by combination and group outcome. All rollouts of a group determine its outcome,
 * whatever the conditions.
 */
export async function countGroups(
  engine: Engine,
  from: RawBuilder<unknown>,
  values: readonly RawBuilder<unknown>[],
): Promise<GroupsRow[]> {
  const { plannedGroupSize } = engine.aggregates;
  const known = sql`(r.status = 'FAILED' or (r.status = 'COMPLETED' and r.success is not null))`;
  const columns = ['task', 'counts', 'siblings', 'first_success', 'first_unknown'].map((name) => sql.ref(name));
  const { rows } = await sql<GroupsRow>`
    with q as (select ${columnsOf(values)} o.task, o.group_key, o.status, o.success ${from} and o.task is not null),
    n as (
      select g.key, g.on_success, ${plannedGroupSize(sql.ref('u.plan'), sql.ref('s.kind'))} as size
      from ${engine.table('groups')} as g join ${engine.table('runs')} as u on u.key = g.run
        join ${engine.table('stages')} as s on s.key = g.stage
      where g.key in (select group_key from q)
    ),
    whole as (
      select n.key, case when count(*) >= n.size and count(*) = count(case when ${known} then 1 end) then 1 else 0 end as counts
      from n join ${engine.table('rollouts')} as r on r.group_key = n.key
      where n.on_success = 'CONTINUE' group by n.key, n.size
    ),
    queued as (
      select n.key, row_number() over (partition by n.key order by r.priority desc, r.key) as place,
        case when ${known} then 1 else 0 end as known, case when r.status = 'COMPLETED' and r.success then 1 else 0 end as succeeded
      from n join ${engine.table('rollouts')} as r on r.group_key = n.key where n.on_success = 'CANCEL_PENDING'
    ),
    came as (
      select key, counts, null as siblings, null as first_success, null as first_unknown from whole
      union all
      select key, null, count(*), min(case when succeeded = 1 then place end), min(case when known = 0 then place end)
      from queued group by key
    )
    select ${sql.join([...places(values), ...columns])}, count(distinct group_key) as groups, count(*) as trials,
      count(case when status = 'COMPLETED' and success then 1 end) as successes
    from q join came on came.key = q.group_key ${groupedBy([...places(values), ...columns])}`.execute(engine.db);
  return rows;
}

type Changing<T> = { -readonly [K in keyof T]: T[K] };

/** Returns one entry for each task of the rows of a combination. */
export function readTasks(rows: readonly GroupsRow[]): TaskGroups[] {
  return [...Map.groupBy(rows, ({ task }) => task).values()].map(readTask);
}

function readTask(rows: readonly GroupsRow[]): TaskGroups {
  const task: Changing<TaskGroups> = { groups: 0n, trials: 0n, successes: 0n, unfinished: 0n, stopping: [] };
  for (const { counts, groups, trials, successes, siblings, first_success, first_unknown } of rows) {
    if (counts === null) {
      const places = { firstSuccess: first_success ?? undefined, firstUnknown: first_unknown ?? undefined };
      task.stopping = [...task.stopping, { groups, siblings: siblings ?? 0n, ...places }];
    } else if (Number(counts) === 0) task.unfinished += groups;
    else {
      task.groups += groups;
      task.trials += trials;
      task.successes += successes;
    }
  }
  return task;
}
