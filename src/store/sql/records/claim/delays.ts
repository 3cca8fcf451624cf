import { sql } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import { NANOS_PER_MS } from '../../../../domain/lease.ts';
import type { ClaimRequest } from '../../../contract/rollout.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { IS_PENDING, isWanted } from './queue.ts';
import { type ClaimScope, isInScope } from './scope.ts';

/**
 * Returns the milliseconds until the first matching delayed rollout can be claimed, by the clock of the database.
 * Returns undefined if no rollout of a claimable stage is delayed.
 */
export async function nextInMs(
  tx: Transaction,
  scope: ClaimScope,
  { labels, minPriority }: ClaimRequest,
): Promise<number | undefined> {
  const { engine } = tx;
  const { queues } = scope;
  if (queues.length === 0) return undefined;
  const stages = [...new Set(queues.map(({ stage }) => stage))];
  const delayed = sql`${IS_PENDING} and r.claimable_time > (select ${engine.now})`;
  const { rows } = await sql<{ readonly next: string | null; readonly now: string }>`
    select min(r.claimable_time) as next, (select ${engine.now}) as now from ${engine.table('rollouts')} as r
    where ${isInScope(engine, scope, stages)} and ${isWanted(engine, { labels, minPriority, except: [] }, delayed)}`.execute(
    tx.db,
  );
  const [found] = rows;
  if (found === undefined || found.next === null) return undefined;
  const nanos = parseInstant(found.next) - parseInstant(found.now);
  // Rounded up: a claim that comes too early finds nothing.
  return Math.max(0, Number((nanos + NANOS_PER_MS - 1n) / NANOS_PER_MS));
}
