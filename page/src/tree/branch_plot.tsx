import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { beginDrawing, gainColour, type Palette, paletteOf, useSize, useTheme } from '../canvas.ts';
import { count, nameOf, number } from '../format.ts';
import { pixel, type Scale, ticks, valueOfPixel } from '../scale.ts';
import { gainShade, type Item, lineageOf } from './rows.ts';
import { boundsOf, indexAt, type Series, thinned, valueAt } from './series.ts';

/** Room for the labels of values, left of the step axis. */
const LABELS = 56;
const [TOP, BOTTOM] = [12, 24];
/** Room for the mark of the selected step, right of the step axis. */
const ROOM = 6;
/** Pixels around the pointer in which a line is found. */
const REACH = 16;

export interface Range {
  readonly from: number;
  readonly to: number;
}

interface BranchPlotProps {
  readonly items: readonly Item[];
  readonly series: ReadonlyMap<string, Series>;
  readonly label: string;
  readonly range: Range;
  readonly scale: number;
  readonly selected: string;
  readonly step: number;
  readonly onSelect: (id: string, step: number) => void;
  /** Undefined: the whole range. */
  readonly onZoom: (range: Range | undefined) => void;
  readonly children: ComponentChildren;
}

interface Found {
  readonly item: Item;
  readonly step: number;
  readonly value: number;
}

/** One line per trajectory. A shared prefix is drawn once, by its owner, so lines part where trajectories part. */
export function BranchPlot(props: BranchPlotProps) {
  const { items, series, label, range, selected, step, onSelect, onZoom } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const area = useRef<HTMLDivElement>(null);
  const size = useSize(area);
  const theme = useTheme();
  const [found, setFound] = useState<Found>();
  const [drag, setDrag] = useState<{ readonly start: number; readonly end: number }>();
  const bounds = useMemo(() => boundsOf(series.values()) ?? [0, 1], [series]);
  const x: Scale = { low: range.from, high: range.to, from: LABELS, to: size.width };
  const y: Scale = { low: bounds[0], high: bounds[1], from: size.height - BOTTOM, to: TOP };

  useEffect(() => {
    if (canvas.current === null || size.width === 0) return;
    const pen = beginDrawing(canvas.current, { ...size, width: size.width + ROOM });
    if (pen === null) return;
    draw(pen, { ...props, x, y, palette: paletteOf(canvas.current), emphasized: found?.item.id ?? selected });
    if (drag !== undefined && drag.start !== drag.end) markRange(pen, drag, size.height, paletteOf(canvas.current));
  }, [items, series, range.from, range.to, size, selected, step, found?.item.id, theme, drag]);

  const place = (event: PointerEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    return { at: event.clientX - box.left, down: event.clientY - box.top };
  };
  const move = (event: PointerEvent) => {
    const { at, down } = place(event);
    setFound(nearest(items, series, { x, y, at, down }));
    if (drag !== undefined) setDrag({ ...drag, end: at });
  };
  const release = (event: PointerEvent) => {
    if (drag === undefined) return;
    setDrag(undefined);
    const { at, down } = place(event);
    if (Math.abs(at - drag.start) > 6) {
      const [from, to] = [drag.start, at].map((each) => valueOfPixel(x, each)).sort((a, b) => a - b) as [
        number,
        number,
      ];
      onZoom({ from: Math.max(0, Math.floor(from)), to: Math.ceil(to) });
      return;
    }
    const hit = nearest(items, series, { x, y, at, down });
    if (hit !== undefined) onSelect(hit.item.id, hit.step);
  };
  const shown = found ?? lineageValue(items, series, selected, step);
  return (
    <figure class="branch-plot">
      <div class="plot-head">{props.children}</div>
      <div class="plot-area" ref={area}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${label} by step, of ${count(items.length)} trajectories. The table below has their figures.`}
          onPointerMove={move}
          onPointerLeave={() => setFound(undefined)}
          onPointerDown={(event) => setDrag({ start: place(event).at, end: place(event).at })}
          onPointerUp={release}
          onDblClick={() => onZoom(undefined)}
        />
      </div>
      <figcaption class="plot-found">
        {shown !== undefined && (
          <>
            <strong>{nameOf(shown.item)}</strong>
            <span class="figure dim">step {count(shown.step)}</span>
            <span class="figure">{number(shown.value, 5)}</span>
          </>
        )}
      </figcaption>
    </figure>
  );
}

function lineageValue(
  items: readonly Item[],
  series: ReadonlyMap<string, Series>,
  id: string,
  step: number,
): Found | undefined {
  const byId = new Map(items.map((item) => [item.id, item]));
  const owner = lineageOf(byId, id).find((item) => item.branchPoint < step || item.parentId === '');
  const item = byId.get(id);
  const value = owner === undefined ? undefined : valueAt(series.get(owner.id), step);
  return item === undefined || value === undefined ? undefined : { item, step, value };
}

interface Drawing extends Omit<BranchPlotProps, 'children'> {
  readonly x: Scale;
  readonly y: Scale;
  readonly palette: Palette;
  readonly emphasized: string;
}

function draw(pen: CanvasRenderingContext2D, drawing: Drawing): void {
  const { items, series, x, y, palette, scale, emphasized, step } = drawing;
  drawAxes(pen, drawing);
  pen.save();
  pen.beginPath();
  pen.rect(x.from - 1, 0, x.to - x.from + ROOM, y.from + 4);
  pen.clip();
  pen.lineJoin = 'round';
  const byId = new Map(items.map((item) => [item.id, item]));
  const lineage = lineageOf(byId, emphasized);
  const inLineage = new Set(lineage.map(({ id }) => id));
  pen.lineWidth = 1.25;
  pen.globalAlpha = items.length > 40 ? 0.55 : 0.85;
  for (const item of items) {
    if (inLineage.has(item.id)) continue;
    pen.strokeStyle = gainColour(palette, gainShade(item.gain, scale));
    trace(pen, drawing, item, Number.POSITIVE_INFINITY);
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 2.25;
  pen.strokeStyle = palette.ink;
  let end = Number.POSITIVE_INFINITY;
  for (const item of lineage) {
    trace(pen, drawing, item, end);
    end = item.branchPoint;
  }
  const selected = lineageValue(items, series, drawing.selected, step);
  const at = Math.round(pixel(x, step)) + 0.5;
  pen.lineWidth = 1;
  pen.strokeStyle = palette.accent;
  pen.beginPath();
  pen.moveTo(at, y.to);
  pen.lineTo(at, y.from);
  pen.stroke();
  if (selected !== undefined) {
    pen.fillStyle = palette.accent;
    pen.strokeStyle = palette.panel;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(pixel(x, step), pixel(y, selected.value), 4, 0, 7);
    pen.fill();
    pen.stroke();
  }
  pen.restore();
}

function drawAxes(pen: CanvasRenderingContext2D, { x, y, palette }: Drawing): void {
  pen.font = '11px system-ui, sans-serif';
  pen.lineWidth = 1;
  pen.strokeStyle = palette.line;
  pen.fillStyle = palette.dim;
  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  for (const value of ticks(y.low, y.high, 4)) {
    const at = Math.round(pixel(y, value)) + 0.5;
    pen.beginPath();
    pen.moveTo(x.from, at);
    pen.lineTo(x.to, at);
    pen.stroke();
    pen.fillText(number(value), x.from - 8, at);
  }
  pen.textBaseline = 'alphabetic';
  for (const step of ticks(x.low, x.high, Math.max(2, (x.to - x.from) / 110))) {
    if (!Number.isInteger(step)) continue;
    const at = pixel(x, step);
    pen.textAlign = at > x.to - 20 ? 'right' : at < x.from + 8 ? 'left' : 'center';
    pen.fillText(count(step), at, y.from + 16);
  }
}

/** Draws the own steps of a trajectory up to a step, from its branch point on its parent's line. */
function trace(pen: CanvasRenderingContext2D, { series, x, y }: Drawing, item: Item, end: number): void {
  const own = series.get(item.id);
  if (own === undefined || own.steps.length === 0) return;
  const { steps, values } = thinned(own, x.low, x.high, Math.max(100, (x.to - x.from) / 2));
  pen.beginPath();
  const parting = valueAt(series.get(item.parentId), item.branchPoint);
  if (parting !== undefined) pen.moveTo(pixel(x, item.branchPoint), pixel(y, parting));
  for (let at = 0; at < steps.length && (steps[at] ?? 0) <= end; at += 1) {
    pen.lineTo(pixel(x, steps[at] ?? 0), pixel(y, values[at] ?? 0));
  }
  pen.stroke();
}

function markRange(
  pen: CanvasRenderingContext2D,
  drag: { readonly start: number; readonly end: number },
  height: number,
  { accent }: Palette,
): void {
  pen.globalAlpha = 0.15;
  pen.fillStyle = accent;
  pen.fillRect(Math.min(drag.start, drag.end), TOP, Math.abs(drag.end - drag.start), height - TOP - BOTTOM);
  pen.globalAlpha = 1;
}

interface Pointer {
  readonly x: Scale;
  readonly y: Scale;
  readonly at: number;
  readonly down: number;
}

function nearest(items: readonly Item[], series: ReadonlyMap<string, Series>, pointer: Pointer): Found | undefined {
  const { x, y, at, down } = pointer;
  const step = valueOfPixel(x, at);
  let best: Found | undefined;
  let distance = REACH;
  for (const item of items) {
    const own = series.get(item.id);
    if (own === undefined || step > (own.steps.at(-1) ?? -1) + 1) continue;
    const index = indexAt(own, Math.round(step));
    const [found, value] = [own.steps[index], own.values[index]];
    if (found === undefined || value === undefined) continue;
    const away = Math.hypot(pixel(y, value) - down, pixel(x, found) - at);
    if (away < distance) [best, distance] = [{ item, step: found, value }, away];
  }
  return best;
}
