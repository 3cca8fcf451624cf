import { LIMITS } from '../../domain/limits.ts';
import type { Trajectory } from '../../domain/trajectory.ts';

/** Rows fetched at a time, so that a page of rows with large metadata never stands in memory as a whole. */
const FETCH = 50;
/** Leaves room for what the wire adds. */
const PAGE_BYTES = LIMITS.messageBytes - 64 * 1024;

export interface GatheredPage {
  readonly items: readonly Trajectory[];
  /** Key of the last item; undefined if there are none. */
  readonly last: bigint | undefined;
  readonly more: boolean;
}

/** A page of trajectories that fits into one message: at most `limit`, fewer where they are large, but at least one if there is one. */
export async function gatherPage(
  fetch: (limit: number, after: bigint | undefined) => Promise<Trajectory[]>,
  limit: number,
  after: bigint | undefined,
  view: 'BASIC' | 'FULL',
): Promise<GatheredPage> {
  const items: Trajectory[] = [];
  let bytes = 0;
  let cursor = after;
  for (;;) {
    // One more than may be shown, to know whether there is another page.
    const rows = await fetch(Math.min(FETCH, limit + 1 - items.length), cursor);
    for (const row of rows) {
      bytes += trajectoryBytes(row, view);
      const full = items.length === limit || (items.length > 0 && bytes > PAGE_BYTES);
      if (full) return { items, last: items.at(-1)?.ref.key, more: true };
      items.push(row);
      cursor = row.ref.key;
    }
    if (rows.length === 0) return { items, last: cursor, more: false };
  }
}

/** At least what the trajectory takes when encoded. */
function trajectoryBytes(trajectory: Trajectory, view: 'BASIC' | 'FULL'): number {
  let bytes = 512 + utf8(trajectory.name) + utf8(trajectory.taskId) + utf8(trajectory.statusMessage);
  bytes += utf8(trajectory.writerId);
  for (const [key, value] of trajectory.labels) bytes += 16 + utf8(key) + utf8(value);
  for (const key of trajectory.metrics.keys()) bytes += 24 + utf8(key);
  return view === 'FULL' ? bytes + utf8(trajectory.metadataJson) : bytes;
}

function utf8(text: string): number {
  return Buffer.byteLength(text);
}
