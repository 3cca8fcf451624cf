import type { SeriesChange } from '../../domain/change.ts';

/** Metric series of a run that were written between two looks of a watcher. */
export interface WrittenSeries {
  /** The lowest step that was written, by `seriesHash`. */
  readonly lowest: ReadonlyMap<number, bigint>;
  /** The lowest step of all other series. Undefined: others were not written. */
  readonly ofOthers: bigint | undefined;
  /** A hint may have been lost, so any point of any series may have been written. */
  readonly any: boolean;
  /** Whether to look for points of some series whose hints were lost. */
  readonly isPoll: boolean;
}

/** Collects hints of LogMetrics between two looks of a watcher. */
export class SeriesHints {
  #lowest = new Map<number, bigint>();
  #ofOthers: bigint | undefined;
  #any = false;
  #isPoll = false;

  /** Undefined: any points may have been written. */
  add(change: SeriesChange | undefined): void {
    if (change === undefined) {
      this.#any = true;
      return;
    }
    for (const [mark, step] of change.lowest) this.#lowest.set(mark, lower(this.#lowest.get(mark), step));
    if (change.ofOthers !== undefined) this.#ofOthers = lower(this.#ofOthers, change.ofOthers);
  }

  /** Must be called at polls. */
  poll(): void {
    this.#isPoll = true;
  }

  take(): WrittenSeries {
    const taken = { lowest: this.#lowest, ofOthers: this.#ofOthers, any: this.#any, isPoll: this.#isPoll };
    this.#lowest = new Map();
    this.#ofOthers = undefined;
    this.#any = false;
    this.#isPoll = false;
    return taken;
  }
}

function lower(one: bigint | undefined, other: bigint): bigint {
  return one !== undefined && one < other ? one : other;
}
