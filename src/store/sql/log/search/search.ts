import { sql } from 'kysely';
import type { TreeRange } from '../../../../domain/lineage.ts';
import type { FoundText, SearchQuery } from '../../../../domain/step_search.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { searchedSegments } from '../read/steps.ts';
import { rangeTable } from '../trajectory/range_table.ts';
import type { SearchedSegment } from './search_job.ts';
import type { StepSearcher } from './step_searcher.ts';

type BodyRow = [
  trajectory: number,
  first: number,
  next: number,
  checksum: number,
  encoding: number,
  bodyBytes: number | null,
  body: Uint8Array,
];

/** Reads the segments of the ranges in one statement, and searches them on a thread. */
export async function searchSteps(
  { engine, namespace }: ReadScope,
  searcher: StepSearcher,
  ranges: readonly TreeRange[],
  { text, limit }: SearchQuery,
): Promise<readonly FoundText[]> {
  if (ranges.length === 0) return [];
  const base = ranges.map(({ from }) => from).reduce((a, b) => (a < b ? a : b));
  const rows = await engine.reads.rows<BodyRow>(sql`with ${rangeTable(engine, ranges)}, ${searchedSegments(engine)}
    select s.trajectory, s.first_step_number - ${base}, s.next_step_number - ${base}, s.checksum, s.encoding,
      s.body_bytes, s.body
    from p cross join ${engine.sql.table('trajectories')} as o cross join ${engine.sql.table('segments')} as s
    where o.tree = p.tree and o.key = p.key and o.namespace = ${namespace}
      and s.tree = p.tree and s.trajectory = p.key and s.first_step_number >= p.first and s.first_step_number < p.hi
    order by 2`);
  const byOwner = Map.groupBy(rows, ([trajectory]) => BigInt(trajectory));
  const segments = ranges.flatMap((range) =>
    (byOwner.get(range.key) ?? []).map(([, first, next, checksum, encoding, bytes, body]): SearchedSegment => {
      const [begin, end] = [base + BigInt(first), base + BigInt(next)];
      return {
        owner: range.key,
        first: begin,
        from: range.from > begin ? range.from : begin,
        to: range.to < end ? range.to : end,
        checksum: BigInt(checksum),
        encoding: BigInt(encoding),
        body_bytes: bytes === null ? null : BigInt(bytes),
        body,
      };
    }),
  );
  return searcher.search(namespace, { text, limit, segments });
}
