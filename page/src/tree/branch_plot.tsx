import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { beginDrawing, paletteOf, useSize, useTheme } from '../canvas.ts';
import { count, nameOf, number } from '../format.ts';
import type { Palette } from '../pen.ts';
import { pixel, type Scale, valueOfPixel } from '../scale.ts';
import {
  BOTTOM,
  drawPlot,
  LABELS,
  lineageValue,
  NO_VALUES,
  type PlotPoint,
  type Range,
  ROOM,
  TOP,
} from './plot_drawing.ts';
import type { Item } from './rows.ts';
import { boundsOf, indexAt, type Series } from './series.ts';

/** Pixels around the pointer in which a line is found. */
const REACH = 16;

interface BranchPlotProps {
  readonly items: readonly Item[];
  readonly series: ReadonlyMap<string, Series>;
  readonly label: string;
  /** True while the values are those of an earlier choice. */
  readonly isOld: boolean;
  /** True until the first values have been read. */
  readonly isLoading: boolean;
  /** True if the values were read, and there are none. */
  readonly isEmpty: boolean;
  readonly range: Range;
  readonly scale: number;
  readonly selected: string;
  readonly step: number;
  readonly onSelect: (id: string, step: number) => void;
  /** Undefined: the whole range. */
  readonly onZoom: (range: Range | undefined) => void;
  readonly children: ComponentChildren;
}

/** One line per trajectory. A shared prefix is drawn once, by its owner, so lines part where trajectories part. */
export function BranchPlot(props: BranchPlotProps) {
  const { items, series, label, range, selected, step, onSelect, onZoom } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const area = useRef<HTMLDivElement>(null);
  const size = useSize(area);
  const theme = useTheme();
  const [found, setFound] = useState<PlotPoint>();
  const [drag, setDrag] = useState<{ readonly start: number; readonly end: number }>();
  const bounds = useMemo(() => boundsOf(series.values()) ?? [0, 1], [series]);
  const x: Scale = { low: range.from, high: range.to, from: LABELS, to: size.width };
  const y: Scale = { low: bounds[0], high: bounds[1], from: size.height - BOTTOM, to: TOP };

  useEffect(() => {
    if (canvas.current === null || size.width === 0) return;
    const pen = beginDrawing(canvas.current, { ...size, width: size.width + ROOM });
    if (pen === null) return;
    drawPlot(pen, { ...props, x, y, palette: paletteOf(canvas.current), emphasized: found?.item.id ?? selected });
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
      <div class="plot-area" aria-busy={props.isOld} ref={area}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${label} by step, of ${count(items.length)} trajectories. The table has their values.`}
          onPointerMove={move}
          onPointerLeave={() => setFound(undefined)}
          onPointerDown={(event) => setDrag({ start: place(event).at, end: place(event).at })}
          onPointerUp={release}
          onDblClick={() => onZoom(undefined)}
        />
        {props.isLoading && <p class="loading">Reading values …</p>}
        {props.isEmpty && <p class="loading">{NO_VALUES}</p>}
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

function nearest(items: readonly Item[], series: ReadonlyMap<string, Series>, pointer: Pointer): PlotPoint | undefined {
  const { x, y, at, down } = pointer;
  const step = valueOfPixel(x, at);
  let best: PlotPoint | undefined;
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
