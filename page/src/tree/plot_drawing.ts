import { count, number } from '../format.ts';
import { gainColour, type Palette, type Pen } from '../pen.ts';
import { pixel, type Scale, ticks } from '../scale.ts';
import { gainShade, type Item, lineageOf } from './rows.ts';
import { type Series, thinned, valueAt } from './series.ts';

/** Room for the labels of values, left of the step axis. */
export const LABELS = 56;
export const [TOP, BOTTOM] = [12, 24];
/** Room for the mark of the selected step, right of the step axis. */
export const ROOM = 6;

/** What a plot without values says. */
export const NO_VALUES = 'No step has this value.';

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** A point of a line. */
export interface PlotPoint {
  readonly item: Item;
  readonly step: number;
  readonly value: number;
}

/** A branching plot: what is drawn, and where. */
export interface PlotDrawing {
  readonly items: readonly Item[];
  readonly series: ReadonlyMap<string, Series>;
  /** Gain at which colours are saturated. */
  readonly scale: number;
  /** Trajectory and step that are marked. No mark without a step. */
  readonly selected: string;
  readonly step: number | undefined;
  readonly x: Scale;
  readonly y: Scale;
  readonly palette: Palette;
  readonly emphasized: string;
}

/** Draws one line per trajectory over axes. A shared prefix is drawn once, by its owner. */
export function drawPlot(pen: Pen, drawing: PlotDrawing): void {
  const { items, x, y, palette, scale, emphasized, step } = drawing;
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
  if (step !== undefined) markStep(pen, drawing, step);
  pen.restore();
}

function markStep(pen: Pen, { items, series, x, y, palette, selected }: PlotDrawing, step: number): void {
  const marked = lineageValue(items, series, selected, step);
  const at = Math.round(pixel(x, step)) + 0.5;
  pen.lineWidth = 1;
  pen.strokeStyle = palette.accent;
  pen.beginPath();
  pen.moveTo(at, y.to);
  pen.lineTo(at, y.from);
  pen.stroke();
  if (marked !== undefined) {
    pen.fillStyle = palette.accent;
    pen.strokeStyle = palette.panel;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(pixel(x, step), pixel(y, marked.value), 4, 0, 7);
    pen.fill();
    pen.stroke();
  }
}

function drawAxes(pen: Pen, { x, y, palette }: PlotDrawing): void {
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
function trace(pen: Pen, { series, x, y }: PlotDrawing, item: Item, end: number): void {
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

/** Returns the value of a trajectory at a step, inherited steps included. */
export function lineageValue(
  items: readonly Item[],
  series: ReadonlyMap<string, Series>,
  id: string,
  step: number,
): PlotPoint | undefined {
  const byId = new Map(items.map((item) => [item.id, item]));
  const owner = lineageOf(byId, id).find((item) => item.branchPoint < step || item.parentId === '');
  const item = byId.get(id);
  const value = owner === undefined ? undefined : valueAt(series.get(owner.id), step);
  return item === undefined || value === undefined ? undefined : { item, step, value };
}
