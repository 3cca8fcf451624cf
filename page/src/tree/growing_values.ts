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

/** Reads a value of all trajectories of the tree, or of some from a step on, with this many points of each at most. */
export type ReadValues = (
  trajectoryIds: readonly string[] | undefined,
  range: Range,
  points: number,
) => Promise<ReadonlyMap<string, Series>>;

/** Points of a trajectory: four of each stretch. First enough to see the lines, then more than a screen has pixels. */
export const [COARSE_POINTS, FINE_POINTS] = [300, 2000];

/** More trajectories are read with their whole tree. */
const MOST_TRAJECTORIES = 1000;
/** A series with more points is read again as a whole, thinned. */
const MOST_POINTS = 8000;

/**
 * The plotted values of a tree, first coarse and then fine. Steps never change, so only those are read that were not
 * known.
 */
export class GrowingValues {
  #ends = new Map<string, number>();
  #series: ReadonlyMap<string, Series> | undefined;
  #isFine = false;

  async read(
    items: readonly Grown[],
    range: Range,
    read: ReadValues,
    isFine: boolean,
  ): Promise<ReadonlyMap<string, Series>> {
    const ends = new Map(items.map(({ id, end }) => [id, end]));
    const endOf = ({ id, branchPoint }: Grown) => this.#ends.get(id) ?? branchPoint + 1;
    const grown = items.filter((item) => item.end > endOf(item));
    const isLong = [...(this.#series?.values() ?? [])].some(({ steps }) => steps.length > MOST_POINTS);
    // Series that are not thinned cannot become finer.
    const isDue = isFine && !this.#isFine && items.some(({ end, branchPoint }) => end - branchPoint > COARSE_POINTS);
    const points = isFine ? FINE_POINTS : COARSE_POINTS;
    if (this.#series === undefined || grown.length > MOST_TRAJECTORIES || isLong || isDue) {
      this.#series = await read(undefined, range, points);
    } else if (grown.length > 0) {
      const from = Math.max(Math.min(...grown.map(endOf)), range.from ?? 0);
      if (from > (range.to ?? Number.POSITIVE_INFINITY)) return this.#series;
      const ids = grown.map(({ id }) => id);
      const news = await read(ids, { ...range, from }, points);
      const series = new Map(this.#series);
      for (const [id, newer] of news) series.set(id, spliced(series.get(id) ?? NONE, from, newer));
      this.#series = series;
    }
    this.#ends = ends;
    this.#isFine ||= isFine;
    return this.#series;
  }
}

const NONE: Series = { steps: new Float64Array(), values: new Float64Array() };
