import type { SeriesChange } from '../../domain/change.ts';

/** Metric series of a run that were written between two looks of a watcher. */
export interface WrittenSeries {
  /** The lowest step that was written, by `seriesHash`. */
  readonly lowest: ReadonlyMap<number, bigint>;
  /** The lowest step of all other series. Undefined: others were not written. */
  readonly ofOthers: bigint | undefined;
  /** A hint may have been lost, so any point of any series may have been written. */
  readonly any: boolean;
}

/** Collects hints of LogMetrics between two looks of a watcher. */
export class SeriesHints {
  readonly #runId: string;
  #lowest = new Map<number, bigint>();
  #ofOthers: bigint | undefined;
  #any = false;

  constructor(runId: string) {
    this.#runId = runId;
  }

  /** Returns whether to look. */
  add(change: SeriesChange | undefined): boolean {
    if (change === undefined) {
      this.#any = true;
      return true;
    }
    if (change.runId !== this.#runId) return false;
    for (const [mark, step] of change.lowest) this.#lowest.set(mark, lower(this.#lowest.get(mark), step));
    if (change.ofOthers !== undefined) this.#ofOthers = lower(this.#ofOthers, change.ofOthers);
    return true;
  }

  take(): WrittenSeries {
    const taken = { lowest: this.#lowest, ofOthers: this.#ofOthers, any: this.#any };
    this.#lowest = new Map();
    this.#ofOthers = undefined;
    this.#any = false;
    return taken;
  }
}

function lower(one: bigint | undefined, other: bigint): bigint {
  return one !== undefined && one < other ? one : other;
}
