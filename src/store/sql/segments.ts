import { type RawBuilder, sql } from 'kysely';
import type { Segment } from '../../domain/lineage.ts';
import type { Engine } from './engine.ts';

/** Segments of one statement. Statements over a deeper lineage go piece by piece, so that each is short and others go in between. */
export const MOST_SEGMENTS = 1000;

/** Up to so many segments stand in the statement's text, where engines plan best; more are one list, so that texts and parameters do not grow. */
const MOST_VALUES = 8;

/**
 * The clipped segments of a lineage as a common table expression `g(tree, key, lo, hi)`. Joined in this order (`cross join` keeps SQLite to it) each segment
 * is one range of the primary key, so a page is one statement however many trajectories it touches. Join on `g.tree`: if the tree were given to Postgres as a
 * value, it could take the tree's rows for few and read all of them for each segment.
 */
export function segmentTable(engine: Engine, tree: bigint, segments: readonly Segment[]): RawBuilder<unknown> {
  if (segments.length > MOST_VALUES)
    return sql`g(tree, key, lo, hi) as materialized (${engine.selectSegments(tree, segments)})`;
  const rows = segments.map(
    ({ key, from, to }) =>
      sql`(cast(${tree} as bigint), cast(${key} as bigint), cast(${from} as bigint), cast(${to} as bigint))`,
  );
  return sql`g(tree, key, lo, hi) as (values ${sql.join(rows)})`;
}

/** The segments in pieces of at most `MOST_SEGMENTS`. */
export function* piecesOf(segments: readonly Segment[]): Generator<readonly Segment[]> {
  for (let at = 0; at < segments.length; at += MOST_SEGMENTS) yield segments.slice(at, at + MOST_SEGMENTS);
}
