import { type RawBuilder, sql } from 'kysely';
import type { OwnRange, Segment } from '../../../domain/lineage.ts';
import type { Engine } from '../engine.ts';

/**
 * Segments per statement. Deeper lineages are read in batches, so that each statement is short and other work runs
 * between them.
 */
export const MOST_SEGMENTS = 1000;

/**
 * Up to this many segments are values in the text of the statement, where engines plan best. More are one parameter, so
 * that text and parameters do not grow.
 */
const MOST_VALUES = 8;

/**
 * The clipped segments of a lineage as a common table expression `g(tree, key, lo, hi)`. `cross join` keeps SQLite to
 * the order of the joins, so each segment is one range of the primary key and a page is one statement. Join on
 * `g.tree`. With a parameter, Postgres could underestimate the rows of the tree and read all of them for each segment.
 */
export function segmentTable(engine: Engine, tree: bigint, segments: readonly Segment[]): RawBuilder<unknown> {
  return rangeTable(
    engine,
    segments.map(({ key, from, to }) => ({ tree, key, from, to })),
  );
}

/** Like `segmentTable`, for trajectories of several trees. */
export function rangeTable(engine: Engine, ranges: readonly OwnRange[]): RawBuilder<unknown> {
  if (ranges.length > MOST_VALUES) return sql`g(tree, key, lo, hi) as materialized (${engine.selectRanges(ranges)})`;
  const rows = ranges.map(
    ({ tree, key, from, to }) =>
      sql`(cast(${tree} as bigint), cast(${key} as bigint), cast(${from} as bigint), cast(${to} as bigint))`,
  );
  return sql`g(tree, key, lo, hi) as (values ${sql.join(rows)})`;
}

/** The segments in pieces of at most `MOST_SEGMENTS`. */
export function* piecesOf(segments: readonly Segment[]): Generator<readonly Segment[]> {
  for (let at = 0; at < segments.length; at += MOST_SEGMENTS) yield segments.slice(at, at + MOST_SEGMENTS);
}
