import { type RawBuilder, sql } from 'kysely';
import type { Engine, Queue, QueuedRow, Wanted } from '../sql/engine.ts';
import { IS_PENDING, isWanted, QUEUE_ORDER } from '../sql/queue.ts';

/** Queue by queue, each by its index; whatever a transaction reads here is its own. */
export function readQueued(
  engine: Pick<Engine, 'hasPair' | 'among'>,
  rows: (query: RawBuilder<unknown>) => QueuedRow[],
  queues: readonly Queue[],
  wanted: Wanted,
  limit: number,
): QueuedRow[] {
  const found: QueuedRow[] = [];
  for (const { stage, task } of queues) {
    const ofTask = task === null ? sql`` : sql`and r.task = ${task}`;
    const query = sql`select r.* from rollouts as r where r.stage = ${stage} ${ofTask} and ${isWanted(engine, wanted, IS_PENDING)}
      order by ${QUEUE_ORDER} limit ${limit}`;
    found.push(...rows(query));
  }
  if (queues.length > 1) found.sort(byTurn);
  return found.slice(0, limit);
}

function byTurn(a: QueuedRow, b: QueuedRow): number {
  return a.priority === b.priority ? Number(a.key - b.key) : Number(b.priority - a.priority);
}
