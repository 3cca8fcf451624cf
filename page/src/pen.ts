/**
 * What drawings need of a canvas: a part of CanvasRenderingContext2D. The page draws on canvases, and the command line
 * writes the same drawings as SVG.
 */
export interface Pen {
  strokeStyle: string | object;
  fillStyle: string | object;
  lineWidth: number;
  globalAlpha: number;
  lineJoin: 'bevel' | 'miter' | 'round';
  font: string;
  textAlign: 'center' | 'end' | 'left' | 'right' | 'start';
  textBaseline: 'alphabetic' | 'bottom' | 'hanging' | 'ideographic' | 'middle' | 'top';
  beginPath(): void;
  moveTo(x: number, y: number): void;
  lineTo(x: number, y: number): void;
  quadraticCurveTo(controlX: number, controlY: number, x: number, y: number): void;
  /** Drawings draw whole circles only. */
  arc(x: number, y: number, radius: number, start: number, end: number): void;
  rect(x: number, y: number, width: number, height: number): void;
  roundRect(x: number, y: number, width: number, height: number, radius: number): void;
  fill(): void;
  stroke(): void;
  fillText(text: string, x: number, y: number): void;
  clip(): void;
  save(): void;
  restore(): void;
}

/** Colours of the style sheet, resolved for the current theme. */
export interface Palette {
  readonly ink: string;
  readonly dim: string;
  readonly line: string;
  readonly panel: string;
  readonly accent: string;
  readonly bad: string;
  readonly better: string;
  readonly worse: string;
  readonly equal: string;
}

/** Returns the colour of a gain: grey if it is unknown or 0, blue if positive, orange if negative. */
export function gainColour({ better, worse, equal }: Palette, shade: number | undefined): string {
  if (shade === undefined || shade === 0) return equal;
  // Small gains must differ from none: the scale begins at a quarter of the colour.
  const part = Math.round((0.25 + 0.75 * Math.abs(shade)) * 100);
  return `color-mix(in oklab, ${shade > 0 ? better : worse} ${part}%, ${equal})`;
}
