import type { Pen } from '../../../page/src/pen.ts';
import { plainColour } from './colour.ts';

/** Writes what is drawn as SVG. */
export class SvgPen implements Pen {
  strokeStyle: string | object = '#000';
  fillStyle: string | object = '#000';
  lineWidth = 1;
  globalAlpha = 1;
  lineJoin: Pen['lineJoin'] = 'miter';
  font = '';
  textAlign: Pen['textAlign'] = 'start';
  textBaseline: Pen['textBaseline'] = 'alphabetic';
  readonly #elements: string[] = [];
  readonly #saved: { readonly clips: number; readonly state: Saved }[] = [];
  /** Groups that clip and are open. */
  #open = 0;
  #clips = 0;
  #path = '';

  beginPath(): void {
    this.#path = '';
  }

  moveTo(x: number, y: number): void {
    if (isPoint(x, y)) this.#path += `M${at(x)} ${at(y)}`;
  }

  lineTo(x: number, y: number): void {
    if (isPoint(x, y)) this.#path += `${this.#path === '' ? 'M' : 'L'}${at(x)} ${at(y)}`;
  }

  quadraticCurveTo(controlX: number, controlY: number, x: number, y: number): void {
    this.#path += `Q${at(controlX)} ${at(controlY)} ${at(x)} ${at(y)}`;
  }

  arc(x: number, y: number, radius: number): void {
    const r = at(radius);
    this.#path += `M${at(x - radius)} ${at(y)}a${r} ${r} 0 1 0 ${at(2 * radius)} 0a${r} ${r} 0 1 0 ${at(-2 * radius)} 0z`;
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.#path += `M${at(x)} ${at(y)}h${at(width)}v${at(height)}h${at(-width)}z`;
  }

  roundRect(x: number, y: number, width: number, height: number, radius: number): void {
    const r = Math.min(radius, width / 2, height / 2);
    const [across, down, corner] = [width - 2 * r, height - 2 * r, at(r)];
    const turn = (right: number, under: number) => `a${corner} ${corner} 0 0 1 ${at(right)} ${at(under)}`;
    this.#path += `M${at(x + r)} ${at(y)}h${at(across)}${turn(r, r)}v${at(down)}${turn(-r, r)}h${at(-across)}${turn(-r, -r)}v${at(-down)}${turn(r, -r)}z`;
  }

  fill(): void {
    this.#add(`<path d="${this.#path}" fill="${plainColour(this.fillStyle)}"${this.#opacity()}/>`);
  }

  stroke(): void {
    const join = this.lineJoin === 'round' ? ' stroke-linejoin="round"' : '';
    const line = `fill="none" stroke="${plainColour(this.strokeStyle)}" stroke-width="${at(this.lineWidth)}"`;
    this.#add(`<path d="${this.#path}" ${line}${join}${this.#opacity()}/>`);
  }

  fillText(text: string, x: number, y: number): void {
    const anchor = { right: 'end', end: 'end', center: 'middle', left: 'start', start: 'start' }[this.textAlign];
    // Not every viewer knows dominant-baseline.
    const baseline =
      this.textBaseline === 'middle' ? y + 0.35 * Number.parseFloat(this.font.replace(/^[a-z0-9 ]* (?=\d)/, '')) : y;
    const style = `text-anchor="${anchor}" fill="${plainColour(this.fillStyle)}"${fontOf(this.font)}`;
    this.#add(`<text x="${at(x)}" y="${at(baseline)}" ${style}>${escaped(text)}</text>`);
  }

  clip(): void {
    this.#clips += 1;
    const id = `clip-${this.#clips}`;
    this.#add(`<clipPath id="${id}"><path d="${this.#path}"/></clipPath><g clip-path="url(#${id})">`);
    this.#open += 1;
  }

  save(): void {
    const { strokeStyle, fillStyle, lineWidth, globalAlpha, lineJoin } = this;
    this.#saved.push({ clips: this.#open, state: { strokeStyle, fillStyle, lineWidth, globalAlpha, lineJoin } });
  }

  restore(): void {
    const last = this.#saved.pop();
    if (last === undefined) return;
    Object.assign(this, last.state);
    for (; this.#open > last.clips; this.#open -= 1) this.#add('</g>');
  }

  /** Moves all that `draw` draws. */
  moved(x: number, y: number, draw: () => void): void {
    this.#add(`<g transform="translate(${at(x)} ${at(y)})">`);
    draw();
    this.#add('</g>');
  }

  /** Returns what was drawn as a document, above a background. */
  document(size: { readonly width: number; readonly height: number }, background: string, title: string): string {
    const { width, height } = size;
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" font-family="system-ui, sans-serif" font-size="12">`,
      `<title>${escaped(title)}</title>`,
      `<rect width="${width}" height="${height}" fill="${plainColour(background)}"/>`,
      ...this.#elements,
      '</svg>\n',
    ].join('\n');
  }

  #add(element: string): void {
    this.#elements.push(element);
  }

  #opacity(): string {
    return this.globalAlpha === 1 ? '' : ` opacity="${at(this.globalAlpha)}"`;
  }
}

type Saved = Pick<Pen, 'strokeStyle' | 'fillStyle' | 'lineWidth' | 'globalAlpha' | 'lineJoin'>;

/** As on a canvas, points that are not finite are left out. */
function isPoint(x: number, y: number): boolean {
  return Number.isFinite(x) && Number.isFinite(y);
}

/** Two digits behind the point are finer than any screen. */
function at(value: number): string {
  return String(Math.round(value * 100) / 100 + 0);
}

/** `600 16px …`: weight and size. The family is that of the document. */
function fontOf(font: string): string {
  const [, weight, size] = /^(?:(\d+) )?([\d.]+)px/.exec(font) ?? [];
  return `${size === undefined ? '' : ` font-size="${size}"`}${weight === undefined ? '' : ` font-weight="${weight}"`}`;
}

/** XML has no way to write most control characters. */
function escaped(text: string): string {
  return text
    .toWellFormed()
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, '\ufffd')
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;');
}
