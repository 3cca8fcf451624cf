import { type Series, spliced } from './series.ts';

interface Grown {
  readonly id: string;
  readonly branchPoint: number;
  /** First step number that the trajectory does not have. */
  readonly end: number;
}

interface Range {
  readonly from?: number | undefined;
  readonly to?: number | undefined;
}

/** Reads a value of all trajectories of the tree, or of some from a step on. */
export type ReadValues = (
  trajectoryIds: readonly string[] | undefined,
  range: Range,
) => Promise<ReadonlyMap<string, Series>>;

/** More trajectories are read with their whole tree. */
const MOST_TRAJECTORIES = 1000;
/** A series with more points is read again as a whole, thinned. */
const MOST_POINTS = 8000;

/** The plotted values of a tree. Steps never change, so only those are read that were not known. */
export class GrowingValues {
  #ends = new Map<string, number>();
  #series: ReadonlyMap<string, Series> | undefined;

  async read(items: readonly Grown[], range: Range, read: ReadValues): Promise<ReadonlyMap<string, Series>> {
    const ends = new Map(items.map(({ id, end }) => [id, end]));
    const grown = items.filter(({ id, end }) => end > (this.#ends.get(id) ?? -1));
    const isLong = [...(this.#series?.values() ?? [])].some(({ steps }) => steps.length > MOST_POINTS);
    if (this.#series === undefined || grown.length > MOST_TRAJECTORIES || isLong) {
      this.#series = await read(undefined, range);
    } else if (grown.length > 0) {
      const first = Math.min(...grown.map(({ id, branchPoint }) => this.#ends.get(id) ?? branchPoint + 1));
      const from = Math.max(first, range.from ?? 0);
      if (from > (range.to ?? Number.POSITIVE_INFINITY)) return this.#series;
      const ids = grown.map(({ id }) => id);
      const news = await read(ids, { ...range, from });
      const series = new Map(this.#series);
      for (const [id, newer] of news) series.set(id, spliced(series.get(id) ?? NONE, from, newer));
      this.#series = series;
    }
    this.#ends = ends;
    return this.#series;
  }
}

const NONE: Series = { steps: new Float64Array(), values: new Float64Array() };
