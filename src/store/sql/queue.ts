import { type RawBuilder, sql } from 'kysely';
import type { Engine, Wanted } from './engine.ts';

/**
 * Which rows of a queue (`r`) are wanted. The status is said as the index of what is PENDING says it: compared with a parameter, a plan that
 * serves every parameter could not use that index.
 */
export function isWanted(
  engine: Pick<Engine, 'hasPair' | 'among'>,
  { labels, minPriority, except }: Wanted,
): RawBuilder<unknown> {
  const conditions = [sql`r.status = 'PENDING'`];
  if (minPriority > 0) conditions.push(sql`r.priority >= ${minPriority}`);
  for (const [key, value] of labels) conditions.push(sql`${engine.hasPair(sql.ref<string>('r.labels'), key, value)}`);
  if (except.length > 0) conditions.push(sql`not ${engine.among(sql.ref('r.key'), except)}`);
  return sql.join(conditions, sql` and `);
}

/** Q5. */
export const QUEUE_ORDER = sql`r.priority desc, r.key`;
