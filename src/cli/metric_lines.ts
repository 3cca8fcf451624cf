/** Draws a line per series of a run: name, sparkline, and last, smallest and largest value. */
import type { MetricSeries, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { stageTitle } from './stage_lines.ts';
import { kindName } from './status.ts';

interface Metrics {
  readonly series: readonly MetricSeries[];
  readonly stages: readonly Stage[];
  /** Shows only these keys. Empty: all. */
  readonly keys: readonly string[];
}

const MOST_SERIES = 20;
const SPARK_COLUMNS = 24;
/** Longest result of shortNumber, and a mark before it. */
const LAST_COLUMNS = 11;
const VALUE_COLUMNS = 10;

/** Draws the logged series of the run, then the metrics of its stages, by kind, as series over the stage numbers. */
export function seriesLines(
  { series, stages, keys }: Metrics,
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  const rows = [...series.map((each) => loggedRow(each, stages)), ...stageRows(stages, keys)];
  if (rows.length === 0) return [];
  const shown = rows.slice(0, MOST_SERIES);
  const room = columns - SPARK_COLUMNS - LAST_COLUMNS - 2 * VALUE_COLUMNS - 4;
  const title = Math.min(
    room,
    shown.reduce((width, row) => Math.max(width, widthOf(row.title)), 0),
  );
  const line = (cells: readonly [string, string, string, string, string], spark = (text: string) => text) =>
    [
      fill(cells[0], title),
      spark(fill(cells[1], SPARK_COLUMNS)),
      cells[2].padStart(LAST_COLUMNS),
      cells[3].padStart(VALUE_COLUMNS),
      cells[4].padStart(VALUE_COLUMNS),
    ].join(' ');
  const more = rows.length - shown.length;
  return [
    paint.dim(line(['', '', 'last', 'least', 'greatest'])),
    ...shown.map(({ title: name, points, whole }) => {
      const values = points.map(({ value }) => value).filter((value) => !Number.isNaN(value));
      const [least, most] = [
        values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY),
        values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY),
      ];
      const last = `${whole ? '' : '~'}${shortNumber(points.at(-1)?.value ?? Number.NaN)}`;
      const range = values.length === 0 ? (['', ''] as const) : ([shortNumber(least), shortNumber(most)] as const);
      return line([name, sparkline(points, SPARK_COLUMNS), last, ...range], paint.cyan);
    }),
    ...(more > 0 ? [`… ${more} more; --metric KEY shows one`] : []),
  ];
}

interface SeriesRow {
  readonly title: string;
  readonly points: readonly SparkPoint[];
  /** Whether the last point is the last one that was logged. */
  readonly whole: boolean;
}

function loggedRow({ key, stageId, metricSteps, values, nanCount }: MetricSeries, stages: readonly Stage[]): SeriesRow {
  const stage = stages.find(({ id }) => id === stageId);
  const points = values.map((value, i) => ({ at: Number(metricSteps[i] ?? 0n), value }));
  const title = printable(stage === undefined ? key : `${stageTitle(stage)}: ${key}`);
  return { title, points, whole: nanCount === 0n };
}

/** `train steps: loss`: the metrics of the stages of one kind, as series over the stage numbers. */
function stageRows(stages: readonly Stage[], keys: readonly string[]): SeriesRow[] {
  const rows = new Map<string, SparkPoint[]>();
  const byNumber = stages.toSorted((a, b) => a.kind - b.kind || Number(a.number - b.number));
  for (const { kind, number, metrics } of byNumber) {
    for (const key of Object.keys(metrics).sort()) {
      if (keys.length > 0 && !keys.includes(key)) continue;
      const title = printable(`${kindName(kind)}s: ${key}`);
      const points = rows.get(title) ?? [];
      points.push({ at: Number(number), value: metrics[key] ?? Number.NaN });
      rows.set(title, points);
    }
  }
  // A single value is shown at its stage already.
  return [...rows].flatMap(([title, points]) => (points.length < 2 ? [] : [{ title, points, whole: true }]));
}

const BLOCKS = '▁▂▃▄▅▆▇█';

/** A point of a series. Positions ascend. */
interface SparkPoint {
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
