import { type RawBuilder, sql } from 'kysely';
import type { OwnedRange, TreeRange } from '../../../../domain/lineage.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';

/**
 * Ranges per statement. Deeper lineages are read in batches, so that each statement is short and other work runs
 * between them.
 */
export const MOST_RANGES = 1000;

/**
 * Up to this many ranges are values in the text of the statement, where engines plan best. More are one parameter, so
 * that text and parameters do not grow.
 */
const MOST_VALUES = 8;

/**
 * The clipped ranges of a lineage as a common table expression `g(tree, key, lo, hi)`. `cross join` keeps SQLite to
 * the order of the joins, so each is one range of the primary key and a page is one statement. Join on
 * `g.tree`. With a parameter, Postgres could underestimate the rows of the tree and read all of them for each range.
 */
export function lineageTable(engine: Engine, tree: bigint, ranges: readonly OwnedRange[]): RawBuilder<unknown> {
  return rangeTable(
    engine,
    ranges.map(({ key, from, to }) => ({ tree, key, from, to })),
  );
}

/** Like `lineageTable`, for trajectories of several trees. */
export function rangeTable(engine: Engine, ranges: readonly TreeRange[]): RawBuilder<unknown> {
  if (ranges.length > MOST_VALUES)
    return sql`g(tree, key, lo, hi) as materialized (${engine.sql.selectRanges(ranges)})`;
  const rows = ranges.map(
    ({ tree, key, from, to }) =>
      sql`(cast(${tree} as bigint), cast(${key} as bigint), cast(${from} as bigint), cast(${to} as bigint))`,
  );
  return sql`g(tree, key, lo, hi) as (values ${sql.join(rows)})`;
}

/** Trajectories as a common table expression `g`, of which only `tree` and `key` have a meaning. */
export function trajectoryTable(engine: Engine, refs: readonly TrajectoryRef[]): RawBuilder<unknown> {
  return rangeTable(
    engine,
    refs.map(({ tree, key }) => ({ tree, key, from: 0n, to: 0n })),
  );
}

/** The ranges in pieces of at most `MOST_RANGES`. */
export function* piecesOf(ranges: readonly OwnedRange[]): Generator<readonly OwnedRange[]> {
  for (let at = 0; at < ranges.length; at += MOST_RANGES) yield ranges.slice(at, at + MOST_RANGES);
}
