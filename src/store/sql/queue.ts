import { type RawBuilder, sql } from 'kysely';
import type { Engine, Wanted } from './engine.ts';

/** Said as the indexes of what is PENDING say it: compared with a parameter, a plan that serves every parameter could not use them. */
export const IS_PENDING = sql`r.status = 'PENDING'`;

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

/** Q5. */
export const QUEUE_ORDER = sql`r.priority desc, r.key`;
