import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import type { Tx } from '../sql/kit/engine.ts';
import type { KeptQueries } from '../sql/kit/kept_queries.ts';
import {
  type Claims,
  inQueueOrder,
  openStage,
  QUEUE_ORDER,
  type Queue,
  type QueuedRow,
  queuedColumns,
  queueOf,
  type StageName,
  taskIs,
  type Wanted,
} from '../sql/records/claim/queue.ts';
import { postgresExpressions } from './expressions.ts';
import { sequenceOf } from './schema.ts';
import type { OpenTransactions } from './transactions.ts';

/** Settings that last until the transaction ends. */
const BEGIN = `select clock_timestamp() as now, pg_current_xact_id()::text::bigint as mark,
  set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`;

export class PostgresClaims implements Claims {
  readonly #open: OpenTransactions;
  readonly #kept: KeptQueries;

  constructor(open: OpenTransactions, kept: KeptQueries) {
    this.#open = open;
    this.#kept = kept;
  }

  async begin(tx: Tx): Promise<{ now: string; mark: bigint }> {
    const [row] = (await this.#open.of(tx).ask(BEGIN, [])).rows as { now: string; mark: bigint }[];
    return row!;
  }

  async lockQueued(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]> {
    const [only] = queues;
    if (only === undefined) return [];
    if (queues.length > 1) return lockAmong(tx, queues, wanted, limit);
    const terms = { stage: sql`${only.stage}`, ofTask: taskIs(only), limit: sql`${limit} ${LOCK}` };
    return this.#ask(tx, queueOf(postgresExpressions, { columns: ROWS, ...terms }, wanted).compile(tx));
  }

  /** The most frequent claim, so its query is cached. */
  lockNext(tx: Tx, { namespace, id }: StageName, limit: number): Promise<QueuedRow[]> {
    const query = this.#kept.of('next of stage', [namespace, id, limit], (of, named, most) => {
      const stage = openStage(postgresExpressions, { namespace: of, id: named });
      const next = queueOf(postgresExpressions, { columns: ROWS, stage, limit: sql`${most} ${LOCK}` });
      return { compile: () => next.compile(tx) };
    });
    return this.#ask(tx, query);
  }

  async #ask(tx: Tx, { sql: text, parameters }: CompiledQuery<unknown>): Promise<QueuedRow[]> {
    return (await this.#open.of(tx).ask(text, [...parameters])).rows as QueuedRow[];
  }
}

/** Skips rows that other transactions hold. */
const LOCK = sql`for no key update skip locked`;

/** First counts, without locks, how many of the next rollouts each queue has. Then locks that many in each queue. */
async function lockAmong(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]> {
  const taken: QueuedRow[] = [];
  // Other claims take from the same queues. Another round replaces the rollouts that they locked first.
  for (let round = 0; round < ROUNDS && taken.length < limit; round += 1) {
    const left = { ...wanted, except: [...wanted.except, ...taken.map(({ key }) => key)] };
    const quotas = await quotasOf(tx, queues, left, limit - taken.length);
    if (quotas.length === 0) break;
    const terms = { stage: sql`q.stage`, ofTask: taskIs(quotas[0]!, sql`q.task`), limit: sql`q.quota ${LOCK}` };
    const { rows } = await sql`select r.* from ${valuesOf(quotas, true)} cross join lateral (
      ${queueOf(postgresExpressions, { columns: ROWS, ...terms }, left)}) as r`.execute(tx);
    taken.push(...(rows as QueuedRow[]));
  }
  return taken.sort(inQueueOrder);
}

const ROUNDS = 3;

interface Quota extends Queue {
  readonly quota: bigint;
}

async function quotasOf(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<Quota[]> {
  const terms = { stage: sql`q.stage`, ofTask: taskIs(queues[0]!, sql`q.task`), limit: sql`${limit}` };
  const next = sql`select q.stage, q.task from ${valuesOf(queues, false)} cross join lateral (
    ${queueOf(postgresExpressions, { columns: HEADS, ...terms }, wanted)}) as r
    order by ${QUEUE_ORDER} limit ${limit}`;
  const { rows } = await sql`select n.stage, n.task, count(*) as quota from (${next}) as n
    group by n.stage, n.task`.execute(tx);
  return rows as Quota[];
}

const HEADS = sql`r.priority, r.key`;

const ROWS = sql`${queuedColumns(postgresExpressions)}, nextval(${sql.lit(sequenceOf('trajectories'))}) as next_trajectory`;

function valuesOf(queues: readonly (Queue & Partial<Quota>)[], withQuota: boolean): RawBuilder<unknown> {
  const stages = sql`${queues.map(({ stage }) => stage)}::bigint[]`;
  const tasks = sql`${queues.map(({ task }) => task)}::bigint[]`;
  if (!withQuota) return sql`unnest(${stages}, ${tasks}) as q (stage, task)`;
  return sql`unnest(${stages}, ${tasks}, ${queues.map(({ quota }) => quota)}::bigint[]) as q (stage, task, quota)`;
}
