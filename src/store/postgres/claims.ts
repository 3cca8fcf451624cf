import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, StageName, Tx, Wanted } from '../sql/kit/engine.ts';
import { inQueueOrder, openStage, QUEUE_ORDER, queuedColumns, queueOf, taskIs } from '../sql/records/claim/queue.ts';
import { sequenceOf } from './schema.ts';

type Parts = Pick<Engine, 'hasPair' | 'among' | 'table' | 'kept' | 'db' | 'ask' | 'now'>;

export async function lockQueued(
  engine: Parts,
  tx: Tx,
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): Promise<QueuedRow[]> {
  const [only] = queues;
  if (only === undefined) return [];
  if (queues.length > 1) return lockAmong(engine, tx, queues, wanted, limit);
  const terms = { stage: sql`${only.stage}`, ofTask: taskIs(only), limit: sql`${limit} ${LOCK}` };
  const query = queueOf(engine, { columns: rowsOf(engine), ...terms }, wanted);
  return engine.ask(tx, query.compile(tx) as CompiledQuery<QueuedRow>);
}

/** The most frequent claim, so its query is cached. */
export function nextOfStage(engine: Parts, { namespace, id }: StageName, limit: number): CompiledQuery<QueuedRow> {
  return engine.kept.of('next of stage', [namespace, id, limit], (of, named, most) => {
    const stage = openStage(engine, { namespace: of, id: named });
    const query = queueOf(engine, { columns: rowsOf(engine), stage, limit: sql`${most} ${LOCK}` });
    return { compile: () => query.compile(engine.db) as CompiledQuery<QueuedRow> };
  });
}

/** Skips rows that other transactions hold. */
const LOCK = sql`for no key update skip locked`;

/** First counts, without locks, how many of the next rollouts each queue has. Then locks that many in each queue. */
async function lockAmong(
  engine: Parts,
  tx: Tx,
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): Promise<QueuedRow[]> {
  const taken: QueuedRow[] = [];
  // Other claims take from the same queues. Another round replaces the rollouts that they locked first.
  for (let round = 0; round < ROUNDS && taken.length < limit; round += 1) {
    const left = { ...wanted, except: [...wanted.except, ...taken.map(({ key }) => key)] };
    const quotas = await quotasOf(engine, tx, queues, left, limit - taken.length);
    if (quotas.length === 0) break;
    const terms = { stage: sql`q.stage`, ofTask: taskIs(quotas[0]!, sql`q.task`), limit: sql`q.quota ${LOCK}` };
    const { rows } = await sql`select r.* from ${valuesOf(quotas, true)} cross join lateral (
      ${queueOf(engine, { columns: rowsOf(engine), ...terms }, left)}) as r`.execute(tx);
    taken.push(...(rows as QueuedRow[]));
  }
  return taken.sort(inQueueOrder);
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
  const terms = { stage: sql`q.stage`, ofTask: taskIs(queues[0]!, sql`q.task`), limit: sql`${limit}` };
  const next = sql`select q.stage, q.task from ${valuesOf(queues, false)} cross join lateral (
    ${queueOf(engine, { columns: HEADS, ...terms }, wanted)}) as r
    order by ${QUEUE_ORDER} limit ${limit}`;
  const { rows } = await sql`select n.stage, n.task, count(*) as quota from (${next}) as n
    group by n.stage, n.task`.execute(tx);
  return rows as Quota[];
}

const HEADS = sql`r.priority, r.key`;

function rowsOf(engine: Parts): RawBuilder<unknown> {
  return sql`${queuedColumns(engine)}, nextval(${sql.lit(sequenceOf('trajectories'))}) as next_trajectory`;
}

function valuesOf(queues: readonly (Queue & Partial<Quota>)[], withQuota: boolean): RawBuilder<unknown> {
  const stages = sql`${queues.map(({ stage }) => stage)}::bigint[]`;
  const tasks = sql`${queues.map(({ task }) => task)}::bigint[]`;
  if (!withQuota) return sql`unnest(${stages}, ${tasks}) as q (stage, task)`;
  return sql`unnest(${stages}, ${tasks}, ${queues.map(({ quota }) => quota)}::bigint[]) as q (stage, task, quota)`;
}
