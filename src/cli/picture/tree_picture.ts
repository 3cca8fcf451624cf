import { count, nameOf, number, signed } from '../../../page/src/format.ts';
import type { Palette } from '../../../page/src/pen.ts';
import { statusName } from '../../../page/src/status_name.ts';
import { drawBars } from '../../../page/src/tree/bar_drawing.ts';
import { drawPlot, LABELS, NO_VALUES } from '../../../page/src/tree/plot_drawing.ts';
import { gainScale, type Item, rootOf, rowsOf } from '../../../page/src/tree/rows.ts';
import { boundsOf, type Series } from '../../../page/src/tree/series.ts';
import { SvgPen } from './svg_pen.ts';

export type Theme = 'dark' | 'light';
export type Part = 'both' | 'bars' | 'plot';

/** The colours of the page's style sheet. */
export const PALETTES: Readonly<Record<Theme, Palette & { readonly paper: string }>> = {
  light: {
    paper: '#fcfcfb',
    panel: '#ffffff',
    ink: '#1a1d21',
    dim: '#5c636c',
    line: '#e4e6e9',
    accent: '#0b5cad',
    bad: '#b0261d',
    better: '#1766b8',
    worse: '#b45309',
    equal: '#a7aeb8',
  },
  dark: {
    paper: '#131518',
    panel: '#191c20',
    ink: '#e9ebee',
    dim: '#9aa3ad',
    line: '#2a2f36',
    accent: '#78b7f5',
    bad: '#ff9389',
    better: '#6db2f7',
    worse: '#f59e42',
    equal: '#6a727c',
  },
};

const WIDTH = 960;
const MARGIN = 24;
/** Columns: names, then bars, then figures with these right edges. */
const NAMES = 210;
const FIGURES = 250;
const [GAIN, REWARD, STATUS] = [WIDTH - MARGIN - 170, WIDTH - MARGIN - 100, WIDTH - MARGIN - 76];
const [TITLE, PLOT, HEAD, ROW] = [52, 230, 30, 26];
const FONT = 'system-ui, sans-serif';
/** Letters of a name that fit beside the bars. */
const LETTERS = 30;

export interface TreePicture {
  readonly items: readonly Item[];
  readonly series: ReadonlyMap<string, Series>;
  /** What is plotted. */
  readonly label: string;
  readonly theme: Theme;
  readonly part: Part;
  /** Most rows that are drawn. */
  readonly rows: number;
}

/** Draws a tree as SVG: the branching plot and the rows with their bars, on one step axis. */
export function treePicture({ items, series, label, theme, part, rows: most }: TreePicture): string {
  const palette = PALETTES[theme];
  const pen = new SvgPen();
  const all = rowsOf(items, { order: 'branch', closed: new Set(), find: '' });
  const rows = all.slice(0, most);
  const root = rootOf(items);
  const name = root === undefined ? 'Tree' : nameOf(root);
  const last = items.reduce((end, item) => Math.max(end, item.end - 1), 1);
  const axis = { low: 0, high: last, from: MARGIN + NAMES, to: WIDTH - MARGIN - FIGURES };
  const scale = gainScale(items);
  pen.fillStyle = palette.ink;
  pen.font = `600 17px ${FONT}`;
  pen.fillText(name, MARGIN, 34);
  let top = TITLE;
  if (part !== 'bars') {
    const found = boundsOf(series.values());
    const bounds = found ?? [0, 1];
    const x = { ...axis, from: part === 'both' ? axis.from : MARGIN + LABELS };
    const y = { low: bounds[0], high: bounds[1], from: PLOT - 24, to: 12 };
    pen.moved(0, top, () => {
      const what = { items, series, scale, selected: '', step: undefined, emphasized: root?.id ?? '' };
      drawPlot(pen, { ...what, x, y, palette });
    });
    pen.fillStyle = palette.dim;
    pen.textAlign = 'right';
    pen.font = `12px ${FONT}`;
    pen.fillText(label, WIDTH - MARGIN, 33);
    if (found === undefined) {
      pen.textAlign = 'center';
      pen.fillText(NO_VALUES, (x.from + x.to) / 2, top + PLOT / 2);
    }
    top += PLOT;
  }
  if (part !== 'plot') {
    drawHead(pen, palette, axis.from, top);
    top += HEAD;
    const drawing = { rows, x: axis, scale, selected: '', step: undefined, top: 0, height: rows.length * ROW };
    pen.moved(0, top, () => drawBars(pen, { ...drawing, rowHeight: ROW, palette }));
    for (const [at, { item, depth }] of rows.entries()) {
      drawRow(pen, { item, depth, middle: top + (at + 0.5) * ROW, palette });
    }
    top += rows.length * ROW;
    if (all.length > rows.length) {
      pen.fillStyle = palette.dim;
      pen.textAlign = 'left';
      pen.fillText(`and ${count(all.length - rows.length)} more`, MARGIN, top + 18);
      top += ROW;
    }
  }
  return pen.document(
    { width: WIDTH, height: top + 18 },
    palette.paper,
    `${name}: ${count(items.length)} ${items.length === 1 ? 'trajectory' : 'trajectories'}`,
  );
}

function drawHead(pen: SvgPen, palette: Palette, bars: number, top: number): void {
  pen.fillStyle = palette.dim;
  pen.font = `11px ${FONT}`;
  pen.textBaseline = 'alphabetic';
  const heads = [
    ['Trajectory', MARGIN, 'left'],
    ['Steps', bars, 'left'],
    ['Gain', GAIN, 'right'],
    ['Reward', REWARD, 'right'],
    ['Status', STATUS, 'left'],
  ] as const;
  for (const [text, x, align] of heads) {
    pen.textAlign = align;
    pen.fillText(text, x, top + 18);
  }
  pen.strokeStyle = palette.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(MARGIN, top + HEAD - 3.5);
  pen.lineTo(WIDTH - MARGIN, top + HEAD - 3.5);
  pen.stroke();
}

interface RowDrawing {
  readonly item: Item;
  readonly depth: number;
  readonly middle: number;
  readonly palette: Palette;
}

function drawRow(pen: SvgPen, { item, depth, middle, palette }: RowDrawing): void {
  const text = (value: string, x: number, align: 'left' | 'right', colour: string) => {
    pen.textAlign = align;
    pen.fillStyle = colour;
    pen.fillText(value, x, middle);
  };
  pen.font = `12px ${FONT}`;
  pen.textBaseline = 'middle';
  const indent = Math.min(depth, 6) * 12;
  const branch = item.branchPoint < 0 ? '' : `@${count(item.branchPoint)} `;
  text(shortened(branch + nameOf(item), LETTERS - indent / 6), MARGIN + indent, 'left', palette.ink);
  text(item.gain === undefined ? '' : signed(item.gain), GAIN, 'right', palette.ink);
  text(item.deleted ? '' : number(item.reward), REWARD, 'right', palette.ink);
  const status = item.deleted ? 'deleted' : statusName(item.status);
  text(status, STATUS, 'left', status === 'failed' ? palette.bad : palette.dim);
  pen.textBaseline = 'alphabetic';
}

function shortened(text: string, letters: number): string {
  const all = [...text];
  return all.length <= letters ? text : `${all.slice(0, letters - 1).join('')}…`;
}
