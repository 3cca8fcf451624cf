import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { stepOf } from '../address.ts';
import { readMetrics } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { counted, visible } from '../format.ts';
import { MetricPlot } from './metric_plot.tsx';

interface MetricsProps {
  readonly runIds: readonly string[];
  readonly nameOfRun: (id: string) => string;
  /** Changes when points may have been added. */
  readonly round: number;
}

/** All metrics of the runs, as small plots that share their range. */
export function Metrics({ runIds, nameOfRun, round }: MetricsProps) {
  const { api, address, set } = usePage();
  const { query } = address;
  const range = { from: stepOf(query.get('from')), to: stepOf(query.get('to')) };
  const find = query.get('metric') ?? '';
  const smooth = Math.min(0.99, Number(query.get('smooth') ?? 0) || 0);
  const read = useLoaded(`metrics ${runIds.join()} ${range.from} ${range.to} ${round}`, (signal) =>
    readMetrics(api, runIds, range, signal),
  );
  const shown = useMemo(
    () => [...(read.value ?? [])].filter(([key]) => key.toLowerCase().includes(find.toLowerCase())),
    [read.value, find],
  );
  if (read.value?.size === 0 && range.from === undefined) return null;
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
        {(range.from !== undefined || range.to !== undefined) && (
          <button type="button" onClick={() => set({ from: undefined, to: undefined })}>
            Show all steps
          </button>
        )}
        <span class="dim">{counted(shown.length, 'metric')}</span>
      </header>
      {read.error !== undefined && <p class="problem">{read.error}</p>}
      <div class="metrics">
        {shown.map(([key, lines]) => (
          <WhenVisible key={key}>
            <MetricPlot
              title={visible(key)}
              lines={lines.map((line) => ({ ...line, name: nameOfRun(line.runId), place: runIds.indexOf(line.runId) }))}
              smooth={smooth}
              onZoom={(to) => set({ from: to?.[0], to: to?.[1] })}
            />
          </WhenVisible>
        ))}
      </div>
    </section>
  );
}

/** Renders its content when it has been scrolled near the visible part: a run can have thousands of metrics. */
function WhenVisible({ children }: { readonly children: ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    if (place.current === null) return;
    const observer = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) setSeen(true);
      },
      { rootMargin: '300px' },
    );
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return (
    <div class="metric-place" ref={place}>
      {seen && children}
    </div>
  );
}
