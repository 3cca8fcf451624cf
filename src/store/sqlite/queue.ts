import { type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, StageName, Wanted } from '../sql/engine.ts';
import { ANYTHING, IS_PENDING, isWanted, openStage, QUEUE_ORDER, queuedColumns } from '../sql/queue.ts';

type Parts = Pick<Engine, 'hasPair' | 'among' | 'table'>;

export type FoundRow = Omit<QueuedRow, 'next_trajectory'>;

/** Queue by queue, each by its index; whatever a transaction reads here is its own. */
export function readQueued(
  engine: Parts,
  rows: (query: RawBuilder<unknown>) => FoundRow[],
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): FoundRow[] {
  const found: FoundRow[] = [];
  for (const { stage, task } of queues) {
    const ofTask = task === null ? sql`` : sql`and r.task = ${task}`;
    found.push(...rows(queueOf(engine, sql`${stage}`, ofTask, wanted, sql`${limit}`)));
  }
  if (queues.length > 1) found.sort(byTurn);
  return found.slice(0, limit);
}

export function nextOfStage(engine: Parts, stage: StageName, limit: RawBuilder<unknown>): RawBuilder<unknown> {
  return queueOf(engine, openStage(engine, stage), sql``, ANYTHING, limit);
}

function queueOf(
  engine: Parts,
  stage: RawBuilder<unknown>,
  ofTask: RawBuilder<unknown>,
  wanted: Wanted,
  limit: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`select ${queuedColumns(engine)} from rollouts as r
    where r.stage = ${stage} ${ofTask} and ${isWanted(engine, wanted, IS_PENDING)} order by ${QUEUE_ORDER} limit ${limit}`;
}

function byTurn(a: FoundRow, b: FoundRow): number {
  return a.priority === b.priority ? Number(a.key - b.key) : Number(b.priority - a.priority);
}
