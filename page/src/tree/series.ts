/** Values over step numbers, as plots draw them. */
export interface Series {
  readonly steps: Float64Array;
  readonly values: Float64Array;
}

/** Returns the index of the last step at or before `step`, −1 if there is none. */
export function indexAt({ steps }: Series, step: number): number {
  let from = 0;
  let to = steps.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((steps[middle] ?? 0) <= step) from = middle + 1;
    else to = middle;
  }
  return from - 1;
}

export function valueAt(series: Series | undefined, step: number): number | undefined {
  return series?.values[indexAt(series, step)];
}

/**
 * Returns at most four points of each of `stretches` equal parts of the range: first, last, smallest and largest. So a
 * line drawn through them covers the same pixels as one through all points, and no spike is lost.
 */
export function thinned({ steps, values }: Series, from: number, to: number, stretches: number): Series {
  if (steps.length <= 4 * stretches) return { steps, values };
  const kept: number[] = [];
  const width = (to - from) / stretches || 1;
  for (let start = 0; start < steps.length; ) {
    const stretch = Math.floor(((steps[start] ?? 0) - from) / width);
    let end = start;
    let low = start;
    let high = start;
    for (; end < steps.length && Math.floor(((steps[end] ?? 0) - from) / width) === stretch; end += 1) {
      if ((values[end] ?? 0) < (values[low] ?? 0)) low = end;
      if ((values[end] ?? 0) > (values[high] ?? 0)) high = end;
    }
    for (const at of new Set([start, Math.min(low, high), Math.max(low, high), end - 1])) kept.push(at);
    start = end;
  }
  return {
    steps: Float64Array.from(kept, (at) => steps[at] ?? 0),
    values: Float64Array.from(kept, (at) => values[at] ?? 0),
  };
}

/** Returns the smallest and the largest finite value. Undefined without any. */
export function boundsOf(all: Iterable<Series>): readonly [number, number] | undefined {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const { values } of all) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : undefined;
}

/** Branches are compared with their parents at this many steps. */
const PROBES = 64;

/**
 * Returns how far branches part from their parents, relative to the range of the roots' values: a value that hardly
 * changes in the root and changes in a branch says most. 0: all lines coincide.
 */
export function spread(
  items: readonly { readonly id: string; readonly parentId: string }[],
  series: ReadonlyMap<string, Series>,
): number {
  let most = 0;
  for (const { id, parentId } of items) {
    const [own, parent] = [series.get(id), series.get(parentId)];
    if (own === undefined || parent === undefined || own.steps.length === 0 || parent.steps.length === 0) continue;
    const end = Math.min(own.steps.at(-1) ?? 0, parent.steps.at(-1) ?? 0);
    const last = indexAt(own, end);
    const stride = Math.max(1, Math.floor(last / PROBES));
    for (let at = last; at >= 0; at -= stride) {
      const other = valueAt(parent, own.steps[at] ?? 0);
      if (other !== undefined) most = Math.max(most, Math.abs((own.values[at] ?? 0) - other));
    }
  }
  const roots = items.flatMap(({ id, parentId }) => (series.has(parentId) ? [] : [series.get(id) ?? []])).flat();
  const [low, high] = boundsOf(roots) ?? [0, 0];
  return high > low ? most / (high - low) : most;
}

/** Returns a series with its points from a step on replaced. */
export function spliced({ steps, values }: Series, from: number, newer: Series): Series {
  let kept = steps.length;
  while (kept > 0 && (steps[kept - 1] ?? 0) >= from) kept -= 1;
  return {
    steps: joined(steps.subarray(0, kept), newer.steps),
    values: joined(values.subarray(0, kept), newer.values),
  };
}

function joined(before: Float64Array, after: Float64Array): Float64Array {
  const all = new Float64Array(before.length + after.length);
  all.set(before);
  all.set(after, before.length);
  return all;
}
