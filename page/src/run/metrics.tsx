import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import { stepOf } from '../address.ts';
import { type Api, readMetrics, watchSeries } from '../api.ts';
import { usePage } from '../context.ts';
import { messageOf } from '../errors.ts';
import { counted, visible } from '../format.ts';
import { useVisible } from '../live.ts';
import { labelNames, linesOf } from './lines.ts';
import { MetricBook, type MetricRead, type StepRange } from './metric_book.ts';
import { MetricPlot, type MetricPlotProps, RUN_COLOURS } from './metric_plot.tsx';

/** Runs that are overlaid. */
const MOST_RUNS = 20;

/** All metrics of a run and of those that the address overlays, as small plots that share their range. */
export function Metrics({ runId }: { readonly runId: string }) {
  const { address, set } = usePage();
  const { query } = address;
  const others = query.get('with') ?? '';
  const runIds = useMemo(
    () => [...new Set([runId, ...others.split(',')])].filter((id) => id !== '').slice(0, MOST_RUNS),
    [runId, others],
  );
  const range = { from: stepOf(query.get('from')), to: stepOf(query.get('to')) };
  const find = query.get('metric') ?? '';
  const smooth = Math.min(0.99, Number(query.get('smooth') ?? 0) || 0);
  const by = query.get('by') ?? '';
  const { book, runs, error } = useMetricBook(runIds, range);
  const shownRuns = useMemo(() => runIds.map((id) => runs.get(id) ?? { id, name: '', labels: {} }), [runIds, runs]);
  const keys = book.keys;
  const shown = keys.filter((key) => key.toLowerCase().includes(find.toLowerCase()));
  if (keys.length === 0 && runIds.length === 1 && error === undefined) return null;
  return (
    <section aria-labelledby="metrics">
      <header class="section-bar">
        <h2 id="metrics">Metrics</h2>
        <input
          type="search"
          aria-label="filter metrics"
          placeholder="Filter"
          value={find}
          onInput={(event) => set({ metric: event.currentTarget.value }, { replace: true })}
        />
        <label>
          <span class="dim">Smooth</span>{' '}
          <input
            type="range"
            min={0}
            max={0.99}
            step={0.01}
            value={smooth}
            onInput={(event) => set({ smooth: Number(event.currentTarget.value) || undefined }, { replace: true })}
          />
        </label>
        {runIds.length > 1 && <Grouping runs={shownRuns} by={by} onChange={(name) => set({ by: name })} />}
        {(range.from !== undefined || range.to !== undefined) && (
          <button type="button" onClick={() => set({ from: undefined, to: undefined })}>
            Show all steps
          </button>
        )}
        <span class="dim">{counted(shown.length, 'metric')}</span>
      </header>
      {error !== undefined && <p class="problem">{error}</p>}
      {runIds.length > 1 && <Legend names={linesOf([], shownRuns, by).names} />}
      <div class="metrics">
        {shown.map((key) => (
          <WhenVisible key={key} onVisible={(isVisible) => book.want(key, isVisible)} again={book}>
            {() => (
              <Metric
                name={key}
                read={book.linesOf(key)}
                runs={shownRuns}
                by={by}
                smooth={smooth}
                onZoom={(to) => set({ from: to?.[0], to: to?.[1] })}
              />
            )}
          </WhenVisible>
        ))}
      </div>
    </section>
  );
}

interface MetricProps extends Omit<MetricPlotProps, 'title' | 'lines'> {
  readonly name: string;
  readonly read: readonly MetricRead[];
  readonly runs: readonly ShownRun[];
  readonly by: string;
}

/** The plot of a metric. A new point of another metric does not draw it again. */
function Metric({ name, read, runs, by, ...plot }: MetricProps) {
  const { lines } = useMemo(() => linesOf(read, runs, by), [read, runs, by]);
  return <MetricPlot title={visible(name)} lines={lines} {...plot} />;
}

/** Chooses between a line for each run, and the mean of the runs with the same value of a label. */
function Grouping({
  runs,
  by,
  onChange,
}: {
  readonly runs: readonly Pick<Run, 'labels'>[];
  readonly by: string;
  readonly onChange: (name: string) => void;
}) {
  const names = labelNames(runs);
  if (names.length === 0) return null;
  return (
    <label>
      <span class="dim">Lines</span>{' '}
      <select value={by} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">of each run</option>
        {names.map((name) => (
          <option key={name} value={name}>
            mean by {visible(name)}
          </option>
        ))}
      </select>
    </label>
  );
}

function Legend({ names }: { readonly names: readonly string[] }) {
  return (
    <p class="legend runs-legend">
      {names.map((name, at) => (
        <span key={name}>
          <span class="swatch" style={{ background: `var(${RUN_COLOURS[at % RUN_COLOURS.length]})` }} /> {name}{' '}
        </span>
      ))}
    </p>
  );
}

type ShownRun = Pick<Run, 'id' | 'name' | 'labels'>;

/** Watches the series of runs while the tab is visible, and reads the points of the plots that are on screen. */
function useMetricBook(runIds: readonly string[], { from, to }: StepRange) {
  const { api } = usePage();
  const [, draw] = useState(0);
  const [error, setError] = useState<string>();
  const runs = useRef<ReadonlyMap<string, ShownRun>>(new Map());
  const book = useRef<MetricBook>(undefined);
  const isVisible = useVisible();
  const key = `${runIds.join()} ${from} ${to}`;
  const made = useRef('');
  const onChange = (failed?: unknown) => {
    draw((last) => last + 1);
    setError(failed === undefined ? undefined : messageOf(failed));
  };
  const newBook = () => new MetricBook(readerOf(api), { from, to }, onChange, book.current);
  if (made.current !== key || book.current === undefined) {
    made.current = key;
    book.current = newBook();
  }
  useLayoutEffect(() => {
    const current = book.current;
    if (!isVisible || current === undefined) return;
    const stop = new AbortController();
    for (const id of runIds) {
      follow(id, current, stop.signal, (run) => {
        runs.current = new Map(runs.current).set(id, run);
        onChange();
      }).catch((failed) => stop.signal.aborted || onChange(failed));
    }
    return () => stop.abort();
  }, [key, isVisible]);
  return { book: book.current, runs: runs.current, error };
}

function readerOf(api: Api) {
  return (runIds: readonly string[], keys: readonly string[], range: StepRange) =>
    readMetrics(api, { runIds, keys, ...range }, new AbortController().signal);
}

async function follow(
  runId: string,
  book: MetricBook,
  signal: AbortSignal,
  onRun: (run: ShownRun) => void,
): Promise<void> {
  for await (const { run, series } of watchSeries(runId, { signal, onCut: () => undefined })) {
    if (run !== undefined) onRun(run);
    const own = series.filter(({ stageId }) => stageId === '');
    book.note(
      runId,
      own.map(({ key, pointCount, changedFrom }) => ({
        key,
        points: Number(pointCount),
        changedFrom: Number(changedFrom),
      })),
    );
  }
}

interface WhenVisibleProps {
  readonly onVisible: (isVisible: boolean) => void;
  /** Says again whether the content is on screen when this changes. */
  readonly again: unknown;
  readonly children: () => ComponentChildren;
}

/** Pixels around the visible part in which plots are drawn. */
const NEAR = 300;

/** Renders its content when it has been scrolled near the visible part: a run can have thousands of metrics. */
function WhenVisible({ onVisible, again, children }: WhenVisibleProps) {
  const place = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState(false);
  useLayoutEffect(() => {
    if (place.current === null) return;
    const tell = (isVisible: boolean) => {
      if (isVisible) setSeen(true);
      onVisible(isVisible);
    };
    // The observer would call a frame later.
    const { top, bottom } = place.current.getBoundingClientRect();
    if (top < innerHeight + NEAR && bottom > -NEAR) tell(true);
    const observer = new IntersectionObserver((entries) => tell(entries.at(-1)?.isIntersecting === true), {
      rootMargin: `${NEAR}px`,
    });
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      onVisible(false);
    };
  }, [again]);
  return (
    <div class="metric-place" ref={place}>
      {seen && children()}
    </div>
  );
}
