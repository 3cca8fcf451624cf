import { type RawBuilder, sql } from 'kysely';
import type { Segment } from '../../domain/lineage.ts';

/**
 * The clipped segments of a lineage as a common table expression `g(key, lo, hi)`. Joined in this order (`cross join` keeps SQLite to it) each segment is
 * one range of the primary key, so a page is one statement however many trajectories it touches.
 */
export function segmentTable(segments: readonly Segment[]): RawBuilder<unknown> {
  const rows = segments.map(
    ({ key, from, to }) => sql`(cast(${key} as bigint), cast(${from} as bigint), cast(${to} as bigint))`,
  );
  return sql`g(key, lo, hi) as (values ${sql.join(rows)})`;
}
