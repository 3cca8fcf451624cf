import { type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, StageName, Wanted } from '../sql/kit/engine.ts';
import { inQueueOrder, openStage, queuedColumns, queueOf, taskIs } from '../sql/records/claim/queue.ts';

type Parts = Pick<Engine, 'hasPair' | 'among' | 'table' | 'now'>;

export type FoundRow = Omit<QueuedRow, 'next_trajectory'>;

/** Reads queue by queue, each by its index. Rows need no locks, because one transaction writes at a time. */
export function readQueued(
  engine: Parts,
  rows: (query: RawBuilder<unknown>) => FoundRow[],
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): FoundRow[] {
  const columns = queuedColumns(engine);
  const found: FoundRow[] = [];
  for (const queue of queues) {
    const terms = { columns, stage: sql`${queue.stage}`, ofTask: taskIs(queue), limit: sql`${limit}` };
    found.push(...rows(queueOf(engine, terms, wanted)));
  }
  if (queues.length > 1) found.sort(inQueueOrder);
  return found.slice(0, limit);
}

export function nextOfStage(engine: Parts, stage: StageName, limit: RawBuilder<unknown>): RawBuilder<unknown> {
  return queueOf(engine, { columns: queuedColumns(engine), stage: openStage(engine, stage), limit });
}
