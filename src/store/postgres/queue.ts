import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, Tx, Wanted } from '../sql/engine.ts';
import { IS_PENDING, isWanted, QUEUE_ORDER } from '../sql/queue.ts';

type Parts = Pick<Engine, 'hasPair' | 'among' | 'table' | 'kept' | 'db'>;

export async function lockQueued(
  engine: Parts,
  tx: Tx,
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): Promise<QueuedRow[]> {
  const [only] = queues;
  if (only === undefined) return [];
  if (queues.length === 1) {
    const plain =
      only.task === null && wanted.labels.size === 0 && wanted.minPriority <= 0 && wanted.except.length === 0;
    const query = plain ? nextOfStage(engine, only.stage, limit) : nextOf(engine, only, wanted, limit).compile(tx);
    return (await tx.executeQuery(query)).rows as QueuedRow[];
  }
  return lockAmong(engine, tx, queues, wanted, limit);
}

/** Passes over what others hold. */
const LOCK = sql`for no key update skip locked`;

/** What is asked for most. */
function nextOfStage(engine: Parts, stage: bigint, limit: number): CompiledQuery<unknown> {
  return engine.kept.of('next of stage', [stage, limit], (of, most) => {
    const anything = { labels: new Map(), minPriority: 0, except: [] };
    return { compile: () => nextOf(engine, { stage: of, task: null }, anything, most).compile(engine.db) };
  });
}

function nextOf(engine: Parts, queue: Queue, wanted: Wanted, limit: number): RawBuilder<unknown> {
  const ofTask = taskIs(queue, sql`${queue.task}`);
  return queueOf(engine, '*', sql`${queue.stage}`, ofTask, wanted, sql`${limit} ${LOCK}`);
}

/** First, without locks, how many of the next ones stand in which queue; then so many of each are taken. */
async function lockAmong(
  engine: Parts,
  tx: Tx,
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): Promise<QueuedRow[]> {
  const taken: QueuedRow[] = [];
  // Others take from the same queues: what they were quicker at is looked for once more, behind what they took.
  for (let round = 0; round < ROUNDS && taken.length < limit; round += 1) {
    const left = { ...wanted, except: [...wanted.except, ...taken.map(({ key }) => key)] };
    const quotas = await quotasOf(engine, tx, queues, left, limit - taken.length);
    if (quotas.length === 0) break;
    const { rows } = await sql`select r.* from ${valuesOf(quotas, true)} cross join lateral (
      ${queueOf(engine, '*', sql`q.stage`, taskIs(quotas[0]!, sql`q.task`), left, sql`q.quota ${LOCK}`)}) as r`.execute(
      tx,
    );
    taken.push(...(rows as QueuedRow[]));
  }
  return taken.sort(byTurn);
}

const ROUNDS = 3;

interface Quota extends Queue {
  readonly quota: bigint;
}

async function quotasOf(
  engine: Parts,
  tx: Tx,
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): Promise<Quota[]> {
  const next = sql`select q.stage, q.task from ${valuesOf(queues, false)} cross join lateral (
    ${queueOf(engine, 'heads', sql`q.stage`, taskIs(queues[0]!, sql`q.task`), wanted, sql`${limit}`)}) as r
    order by ${QUEUE_ORDER} limit ${limit}`;
  const { rows } = await sql`select n.stage, n.task, count(*) as quota from (${next}) as n
    group by n.stage, n.task`.execute(tx);
  return rows as Quota[];
}

function queueOf(
  engine: Parts,
  columns: '*' | 'heads',
  stage: RawBuilder<unknown>,
  ofTask: RawBuilder<unknown>,
  wanted: Wanted,
  limit: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`select ${columns === '*' ? sql`r.*` : sql`r.priority, r.key`} from ${engine.table('rollouts')} as r
    where r.stage = ${stage} ${ofTask} and ${isWanted(engine, wanted, IS_PENDING)} order by ${QUEUE_ORDER} limit ${limit}`;
}

/** Queues are all of tasks, or none is. */
function taskIs({ task }: Queue, value: RawBuilder<unknown>): RawBuilder<unknown> {
  return task === null ? sql`` : sql`and r.task = ${value}`;
}

function valuesOf(queues: readonly (Queue & Partial<Quota>)[], withQuota: boolean): RawBuilder<unknown> {
  const stages = sql`${queues.map(({ stage }) => stage)}::bigint[]`;
  const tasks = sql`${queues.map(({ task }) => task)}::bigint[]`;
  if (!withQuota) return sql`unnest(${stages}, ${tasks}) as q (stage, task)`;
  return sql`unnest(${stages}, ${tasks}, ${queues.map(({ quota }) => quota)}::bigint[]) as q (stage, task, quota)`;
}

function byTurn(a: QueuedRow, b: QueuedRow): number {
  return a.priority === b.priority ? Number(a.key - b.key) : Number(b.priority - a.priority);
}
