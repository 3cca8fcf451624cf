import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { beginDrawing, paletteOf, useSize, useTheme } from '../canvas.ts';
import { count, counted, number } from '../format.ts';
import { pixel, type Scale, ticks, valueOfPixel } from '../scale.ts';
import { Scroller } from '../table.tsx';
import { boundsOf, indexAt, type Series } from '../tree/series.ts';
import type { Band } from './band.ts';
import type { Line } from './lines.ts';
import { smoothed } from './smooth.ts';

export interface MetricPlotProps {
  readonly title: string;
  readonly lines: readonly Line[];
  /** 0: no smoothed line. */
  readonly smooth: number;
  readonly onZoom: (range: readonly [number, number] | undefined) => void;
}

const [LEFT, TOP, BOTTOM] = [48, 8, 20];
/** Colours of overlaid runs. The legend also names each run. */
export const RUN_COLOURS = ['--accent', '--worse', '--good', '--bad', '--run-5', '--run-6'];

/** Values of lines above a plot. The table has all. */
const MOST_FIGURES = 6;

/** Lines beyond the number of colours repeat the colours with these dashes. */
const DASHES: readonly (readonly number[])[] = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

export function MetricPlot({ title, lines, smooth, onZoom }: MetricPlotProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const area = useRef<HTMLDivElement>(null);
  const size = useSize(area);
  const theme = useTheme();
  const [pointer, setPointer] = useState<number>();
  const [drag, setDrag] = useState<number>();
  const [open, setOpen] = useState(false);
  const [from, to] = useMemo(() => stepsOf(lines), [lines]);
  const bounds = useMemo(() => boundsOf(lines.flatMap(extentOf)) ?? [0, 1], [lines]);
  const x: Scale = { low: from, high: to, from: LEFT, to: size.width - 4 };
  const y: Scale = { low: bounds[0], high: bounds[1], from: size.height - BOTTOM, to: TOP };
  useEffect(() => {
    const pen = canvas.current === null || size.width === 0 ? null : beginDrawing(canvas.current, size);
    if (pen === null || canvas.current === null) return;
    const style = getComputedStyle(canvas.current);
    const colours = RUN_COLOURS.map((name) => style.getPropertyValue(name));
    draw(pen, { x, y, lines, smooth, colours, palette: paletteOf(canvas.current), pointer, drag });
  }, [lines, smooth, size, theme, pointer, drag]);
  const at = (event: PointerEvent) => event.clientX - (event.currentTarget as Element).getBoundingClientRect().left;
  const release = (event: PointerEvent) => {
    if (drag !== undefined && Math.abs(at(event) - drag) > 6) {
      const [low, high] = [drag, at(event)].map((each) => valueOfPixel(x, each)).sort((a, b) => a - b);
      onZoom([Math.max(0, Math.floor(low ?? 0)), Math.ceil(high ?? 0)]);
    }
    setDrag(undefined);
  };
  const step = pointer === undefined ? to : Math.round(valueOfPixel(x, pointer));
  return (
    <figure class="metric">
      <figcaption>
        <strong title={title}>{title}</strong>
        <span class="figure values">
          {lines.slice(0, MOST_FIGURES).map(({ name, place, series }) => (
            <span key={name} title={name}>
              {lines.length > 1 && (
                <span class="swatch dot" style={{ background: `var(${RUN_COLOURS[place % RUN_COLOURS.length]})` }} />
              )}
              {number(series.values[Math.max(0, indexAt(series, step))], 4)}
            </span>
          ))}
        </span>
        {pointer !== undefined && <span class="dim figure">at {count(step)}</span>}
        <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
          Table
        </button>
      </figcaption>
      <div class="metric-area" ref={area}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${title}: ${lines.map((line) => `${line.name}, ${counted(line.points, 'point')}`).join('; ')}`}
          onPointerMove={(event) => setPointer(at(event))}
          onPointerLeave={() => setPointer(undefined)}
          onPointerDown={(event) => setDrag(at(event))}
          onPointerUp={release}
          onDblClick={() => onZoom(undefined)}
        />
      </div>
      {open && <PointTable title={title} lines={lines} />}
    </figure>
  );
}

function stepsOf(lines: readonly Line[]): readonly [number, number] {
  const all = lines.flatMap(({ series: { steps } }) => (steps.length === 0 ? [] : [steps[0] ?? 0, steps.at(-1) ?? 0]));
  return all.length === 0 ? [0, 1] : [Math.min(...all), Math.max(...all)];
}

/** Returns the series that a line shows. */
function extentOf({ series, band }: Line): Series[] {
  if (band === undefined) return [series];
  return [band.low, band.high].map((values) => ({ steps: series.steps, values }));
}

/** The table shows at most this many points, evenly spaced. */
const TABLE_POINTS = 20;

function PointTable({ title, lines }: Pick<MetricPlotProps, 'title' | 'lines'>) {
  const [from, to] = stepsOf(lines);
  const steps = new Set(
    Array.from({ length: TABLE_POINTS }, (_, at) => Math.round(from + ((to - from) * at) / (TABLE_POINTS - 1))),
  );
  return (
    <Scroller label={`values of ${title}`}>
      <table class="list small">
        <thead>
          <tr>
            <th scope="col">Step</th>
            {lines.map((line) => (
              <th scope="col" class="n" key={line.name}>
                {line.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {[...steps].map((step) => (
            <tr key={step}>
              <th scope="row" class="figure">
                {count(step)}
              </th>
              {lines.map((line) => (
                <td class="n" key={line.name}>
                  {cellOf(line, step)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroller>
  );
}

/** The value of a line at a step, of a mean with the range of its runs. */
function cellOf({ series, band }: Line, step: number): string {
  const at = indexAt(series, step);
  const value = number(series.values[at], 5);
  return band === undefined ? value : `${value} (${number(band.low[at], 5)} to ${number(band.high[at], 5)})`;
}

interface Drawing {
  readonly x: Scale;
  readonly y: Scale;
  readonly lines: readonly Line[];
  readonly smooth: number;
  readonly colours: readonly string[];
  readonly palette: ReturnType<typeof paletteOf>;
  readonly pointer: number | undefined;
  readonly drag: number | undefined;
}

function draw(pen: CanvasRenderingContext2D, { x, y, lines, smooth, colours, palette, pointer, drag }: Drawing): void {
  pen.font = '11px system-ui, sans-serif';
  pen.fillStyle = palette.dim;
  pen.strokeStyle = palette.line;
  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  for (const value of ticks(y.low, y.high, 4)) {
    const at = Math.round(pixel(y, value)) + 0.5;
    pen.beginPath();
    pen.moveTo(x.from, at);
    pen.lineTo(x.to, at);
    pen.stroke();
    pen.fillText(number(value, 3), x.from - 6, at);
  }
  pen.textBaseline = 'alphabetic';
  for (const step of ticks(x.low, x.high, Math.max(2, (x.to - x.from) / 90))) {
    if (!Number.isInteger(step)) continue;
    const at = pixel(x, step);
    pen.textAlign = at > x.to - 16 ? 'right' : 'center';
    pen.fillText(number(step, 3), at, y.from + 15);
  }
  for (const { series, place, band } of lines) {
    pen.strokeStyle = colours[place % colours.length] ?? palette.ink;
    pen.setLineDash([...(DASHES[Math.floor(place / colours.length) % DASHES.length] ?? [])]);
    if (band !== undefined) fillBand(pen, band, x, y);
    // The raw line stays under a smoothed one: smoothing must not hide a spike.
    pen.globalAlpha = smooth > 0 ? 0.35 : 1;
    pen.lineWidth = 1.25;
    trace(pen, series, x, y);
    if (smooth === 0) continue;
    pen.globalAlpha = 1;
    pen.lineWidth = 1.75;
    trace(pen, smoothed(series, smooth), x, y);
  }
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  if (pointer === undefined || pointer < x.from) return;
  pen.strokeStyle = palette.dim;
  pen.beginPath();
  pen.moveTo(Math.round(pointer) + 0.5, y.to);
  pen.lineTo(Math.round(pointer) + 0.5, y.from);
  pen.stroke();
  if (drag === undefined) return;
  pen.globalAlpha = 0.15;
  pen.fillStyle = palette.accent;
  pen.fillRect(Math.min(pointer, drag), y.to, Math.abs(pointer - drag), y.from - y.to);
  pen.globalAlpha = 1;
}

function fillBand(pen: CanvasRenderingContext2D, { mean: { steps }, low, high }: Band, x: Scale, y: Scale): void {
  pen.fillStyle = pen.strokeStyle;
  pen.globalAlpha = 0.14;
  pen.beginPath();
  for (let at = 0; at < steps.length; at += 1) {
    if (Number.isFinite(high[at])) pen.lineTo(pixel(x, steps[at] ?? 0), pixel(y, high[at] ?? 0));
  }
  for (let at = steps.length - 1; at >= 0; at -= 1) {
    if (Number.isFinite(low[at])) pen.lineTo(pixel(x, steps[at] ?? 0), pixel(y, low[at] ?? 0));
  }
  pen.closePath();
  pen.fill();
}

function trace(pen: CanvasRenderingContext2D, { steps, values }: Series, x: Scale, y: Scale): void {
  pen.beginPath();
  for (let at = 0; at < steps.length; at += 1) {
    if (Number.isFinite(values[at])) pen.lineTo(pixel(x, steps[at] ?? 0), pixel(y, values[at] ?? 0));
  }
  pen.stroke();
  if (steps.length !== 1) return;
  pen.fillStyle = pen.strokeStyle;
  pen.fillRect(pixel(x, steps[0] ?? 0) - 2, pixel(y, values[0] ?? 0) - 2, 4, 4);
}
