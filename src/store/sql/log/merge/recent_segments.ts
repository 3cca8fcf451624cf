import type { SegmentRow } from '../../kit/tables/steps.ts';

/** Bound on what is kept, in bytes. */
const MOST_BYTES = 32 * 1024 * 1024;

/** About the memory of a segment apart from its steps and states. */
const ROW_BYTES = 1024;

/**
 * The latest segments of trajectories as this process has committed them, so that merges need not read them. They may
 * have been changed since: a merge replaces only segments that are still stored as it knows them. The trajectories that
 * were added first are evicted first.
 */
export class RecentSegments {
  /** Consecutive segments of a trajectory, by its row key. */
  readonly #runs = new Map<bigint, SegmentRow[]>();
  readonly #mostBytes: number;
  #bytes = 0;

  constructor(mostBytes = MOST_BYTES) {
    this.#mostBytes = mostBytes;
  }

  /** Adds segments after their commit, those of each trajectory in order. */
  add(segments: readonly SegmentRow[]): void {
    for (const segment of segments) {
      const key = segment.trajectory;
      if (this.#runs.get(key)?.at(-1)?.next_step_number !== segment.first_step_number) this.forget(key);
      const run = this.#runs.get(key);
      if (run === undefined) this.#runs.set(key, [segment]);
      else run.push(segment);
      this.#bytes += bytesOf(segment);
    }
    for (const key of this.#runs.keys()) {
      if (this.#bytes <= this.#mostBytes) break;
      this.forget(key);
    }
  }

  /** Returns consecutive segments from the one that begins at this number; none if that one is not kept. */
  from(key: bigint, first: bigint): readonly SegmentRow[] {
    const run = this.#runs.get(key) ?? [];
    const begin = run.findIndex((segment) => segment.first_step_number === first);
    return begin < 0 ? [] : run.slice(begin);
  }

  /** Keeps merged segments in place of those that they replace, and drops segments before a number. */
  replace(key: bigint, merged: readonly SegmentRow[], from: bigint): void {
    const run = this.#runs.get(key);
    if (run === undefined) return;
    const isReplaced = ({ first_step_number: first }: SegmentRow) =>
      merged.some((each) => each.first_step_number <= first && first < each.next_step_number);
    const kept = [...merged, ...run.filter((segment) => !isReplaced(segment))]
      .filter((segment) => segment.first_step_number >= from)
      .sort((a, b) => Number(a.first_step_number - b.first_step_number));
    this.forget(key);
    this.add(kept);
  }

  forgetAll(): void {
    this.#runs.clear();
    this.#bytes = 0;
  }

  forget(key: bigint): void {
    for (const segment of this.#runs.get(key) ?? []) this.#bytes -= bytesOf(segment);
    this.#runs.delete(key);
  }
}

function bytesOf({ body, states }: SegmentRow): number {
  return body.length + states.length + ROW_BYTES;
}
