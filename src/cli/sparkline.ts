const BLOCKS = '▁▂▃▄▅▆▇█';

/** A point of a series. Positions ascend. */
export interface SparkPoint {
  readonly at: number;
  readonly value: number;
}

/**
 * Draws a series in at most `columns` columns. If the points fit, each has a column. Else each column shows the mean of
 * a range of positions, or a space if the range has no points. NaN counts as no point; infinities are drawn at the
 * edge.
 */
export function sparkline(points: readonly SparkPoint[], columns: number): string {
  const known = points.filter(({ value }) => !Number.isNaN(value));
  const means = known.length <= columns ? known.map(({ value }) => value) : columnMeans(known, columns);
  const finite = means.filter((value) => Number.isFinite(value));
  const least = finite.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  const most = finite.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  return means.map((value) => block(value, least, most)).join('');
}

function columnMeans(points: readonly SparkPoint[], columns: number): number[] {
  const first = points[0]?.at ?? 0;
  const length = (points.at(-1)?.at ?? 0) - first || 1;
  const byColumn = Map.groupBy(points, ({ at }) =>
    Math.min(columns - 1, Math.floor(((at - first) / length) * columns)),
  );
  return Array.from({ length: columns }, (_, column) => {
    const values = byColumn.get(column) ?? [];
    return values.reduce((sum, { value }) => sum + value / values.length, values.length === 0 ? Number.NaN : 0);
  });
}

function block(value: number, least: number, most: number): string {
  if (Number.isNaN(value)) return ' ';
  if (value === Number.POSITIVE_INFINITY) return BLOCKS.at(-1) ?? '';
  if (value === Number.NEGATIVE_INFINITY) return BLOCKS.at(0) ?? '';
  // The range of the largest doubles is infinite; the range of their halves is finite.
  const scale = Number.isFinite(most - least) ? 1 : 0.5;
  const span = most * scale - least * scale;
  const share = span === 0 ? 0.5 : (value * scale - least * scale) / span;
  return BLOCKS.at(Math.min(BLOCKS.length - 1, Math.floor(share * BLOCKS.length))) ?? '';
}
