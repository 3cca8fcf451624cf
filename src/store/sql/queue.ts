import { type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, StageName, Wanted } from './engine.ts';

/** Said as the indexes of what is PENDING say it: compared with a parameter, a plan that serves every parameter could not use them. */
export const IS_PENDING = sql`r.status = 'PENDING'`;

/**
 * What is PENDING and not delayed (Q3). The time is read once a statement, so that the last column of the queue's indexes serves: rollouts that are delayed
 * are passed over in the index.
 */
function isClaimable({ now }: Pick<Engine, 'now'>): RawBuilder<unknown> {
  return sql`${IS_PENDING} and r.claimable_time <= (select ${now})`;
}

export const ANYTHING: Wanted = { labels: new Map(), minPriority: 0, except: [] };

/** Which rollouts (`r`) of a status are wanted. */
export function isWanted(
  engine: Pick<Engine, 'hasPair' | 'among'>,
  { labels, minPriority, except }: Wanted,
  status: RawBuilder<unknown>,
): RawBuilder<unknown> {
  const conditions = [status];
  if (minPriority > 0) conditions.push(sql`r.priority >= ${minPriority}`);
  for (const [key, value] of labels) conditions.push(sql`${engine.hasPair(sql.ref<string>('r.labels'), key, value)}`);
  if (except.length > 0) conditions.push(sql`not ${engine.among(sql.ref('r.key'), except)}`);
  return sql.join(conditions, sql` and `);
}

/** Q4: rollouts of a stage (`s`) of a run (`u`) may be claimed. */
export const IS_OPEN = sql<boolean>`(s.status in ('PENDING', 'INITIALIZING', 'RUNNING')
  and u.status in ('PENDING', 'INITIALIZING', 'RUNNING') and not u.hidden)`;

/** The row key of a stage, if it may be claimed from. */
export function openStage(engine: Pick<Engine, 'table'>, { namespace, id }: StageName): RawBuilder<unknown> {
  return sql`(select s.key from ${engine.table('stages')} as s join ${engine.table('runs')} as u on u.key = s.run
    where s.namespace = ${namespace} and s.id = ${id} and ${IS_OPEN})`;
}

/** Q5. */
export const QUEUE_ORDER = sql`r.priority desc, r.key`;

/** What `QueuedRow` says of a rollout (`r`), but for the key; looked for row by row, so that nobody's planner looks at others for all that there are. */
export function queuedColumns(engine: Pick<Engine, 'table'>): RawBuilder<unknown> {
  return sql`r.*, (select g.id from ${engine.table('groups')} as g where g.key = r.group_key) as group_id,
    (select t.id from ${engine.table('tasks')} as t where t.key = r.task) as task_id`;
}

/** What is next in one queue, in its order. */
export function queueOf(
  engine: Pick<Engine, 'hasPair' | 'among' | 'table' | 'now'>,
  columns: RawBuilder<unknown>,
  stage: RawBuilder<unknown>,
  ofTask: RawBuilder<unknown>,
  wanted: Wanted,
  limit: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`select ${columns} from ${engine.table('rollouts')} as r
    where r.stage = ${stage} ${ofTask} and ${isWanted(engine, wanted, isClaimable(engine))} order by ${QUEUE_ORDER} limit ${limit}`;
}

/** The condition that a queue of one task adds. */
export function taskIs({ task }: Queue, value: RawBuilder<unknown> = sql`${task}`): RawBuilder<unknown> {
  return task === null ? sql`` : sql`and r.task = ${value}`;
}

/** Q5, of rows out of several queues. */
export function byTurn(a: Turn, b: Turn): number {
  return a.priority === b.priority ? Number(a.key - b.key) : Number(b.priority - a.priority);
}

type Turn = Pick<QueuedRow, 'priority' | 'key'>;
