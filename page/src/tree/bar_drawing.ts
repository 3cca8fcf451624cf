import { gainColour, type Palette, type Pen } from '../pen.ts';
import { pixel, type Scale } from '../scale.ts';
import { statusName } from '../status_name.ts';
import { gainShade, type Item, type Row } from './rows.ts';

/** Bars of rows: what is drawn, and where. */
export interface BarDrawing {
  readonly rows: readonly Row[];
  readonly x: Scale;
  /** Gain at which colours are saturated. */
  readonly scale: number;
  /** Trajectory and step that are marked. No mark without a step. */
  readonly selected: string;
  readonly step: number | undefined;
  /** The visible part, from the top of the first row. */
  readonly top: number;
  readonly height: number;
  readonly rowHeight: number;
  readonly palette: Palette;
}

/** Draws a bar for each visible row, from its branch point to its end, connected to its parent's bar. */
export function drawBars(pen: Pen, drawing: BarDrawing): void {
  const { rows, x, scale, selected, step, top, height, rowHeight, palette } = drawing;
  const middle = (index: number) => (index + 0.5) * rowHeight - top;
  const from = Math.max(0, Math.floor(top / rowHeight));
  const to = Math.min(rows.length, Math.ceil((top + height) / rowHeight));
  // Connectors of visible rows only: those of all rows would cover the bars.
  pen.strokeStyle = palette.equal;
  pen.globalAlpha = 0.55;
  for (let index = from; index < to; index += 1) {
    const row = rows[index];
    if (row === undefined || row.parent < 0) continue;
    const at = Math.round(pixel(x, row.item.branchPoint)) + 0.5;
    pen.beginPath();
    pen.moveTo(at, Math.max(-1, middle(row.parent) + 3));
    pen.lineTo(at, middle(index) - 4);
    pen.quadraticCurveTo(at, middle(index), at + 4, middle(index));
    pen.lineTo(pixel(x, row.item.branchPoint + 1), middle(index));
    pen.stroke();
  }
  pen.globalAlpha = 1;
  for (let index = from; index < to; index += 1) {
    const { item } = rows[index] as Row;
    const start = pixel(x, Math.max(0, item.branchPoint + 1));
    const end = Math.max(start + 2, pixel(x, item.end - 1));
    pen.fillStyle = item.deleted ? palette.line : gainColour(palette, gainShade(item.gain, scale));
    pen.beginPath();
    pen.roundRect(start, middle(index) - 3, end - start, 6, 3);
    pen.fill();
    drawEnd(pen, item, {
      at: end,
      middle: middle(index),
      colour: item.deleted ? palette.dim : palette.bad,
      accent: palette.accent,
    });
    if (item.id === selected && step !== undefined) {
      pen.fillStyle = palette.accent;
      pen.strokeStyle = palette.panel;
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(pixel(x, step), middle(index), 5, 0, 7);
      pen.stroke();
      pen.fill();
      pen.lineWidth = 1;
    }
  }
}

interface End {
  readonly at: number;
  readonly middle: number;
  readonly colour: string;
  readonly accent: string;
}

/** Failed bars end in a cross, running ones in an arrow, so that neither is shown by colour alone. */
function drawEnd(pen: Pen, { status }: Item, { at, middle, colour, accent }: End): void {
  const name = statusName(status);
  pen.lineWidth = 1.75;
  if (name === 'failed') {
    pen.strokeStyle = colour;
    pen.beginPath();
    for (const slope of [-1, 1]) {
      pen.moveTo(at - 3, middle - 4 * slope);
      pen.lineTo(at + 4, middle + 4 * slope);
    }
    pen.stroke();
  }
  if (name === 'running') {
    pen.fillStyle = accent;
    pen.beginPath();
    pen.moveTo(at, middle - 5);
    pen.lineTo(at + 7, middle);
    pen.lineTo(at, middle + 5);
    pen.fill();
  }
  pen.lineWidth = 1;
}
