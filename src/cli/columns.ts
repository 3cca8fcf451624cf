/**
 * Text for a fixed number of columns. What users wrote (names, observations) is shown without control characters, so that stored text can
 * neither break a line nor steer the terminal.
 */
import pc from 'picocolors';
import type { CliContext, Output } from './context.ts';

export type Paint = ReturnType<typeof pc.createColors>;

/** Colours on a terminal only, and not there either if NO_COLOR is set or TERM says `dumb`. */
export function paintFor(output: Output, env: CliContext['env']): Paint {
  const wanted = output.isTTY === true && (env.NO_COLOR ?? '') === '' && env.TERM !== 'dumb';
  return pc.createColors(wanted);
}

export const DEFAULT_COLUMNS = 80;
const LEAST_COLUMNS = 76;

/** Returns the width of lines: the terminal's, else the variable COLUMNS, else 80; at least 76. */
export function columnsOf({ stdout, env }: Pick<CliContext, 'stdout' | 'env'>): number {
  const columns = stdout.columns ?? (Number.parseInt(env.COLUMNS ?? '', 10) || DEFAULT_COLUMNS);
  return Math.max(LEAST_COLUMNS, columns);
}

const ELLIPSIS = '…';
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]+/gu;
const WIDE =
  /\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]|[\u{20000}-\u{3fffd}]/u;
const graphemes = new Intl.Segmenter('en', { granularity: 'grapheme' });

/** The text in one line: each run of line breaks and other control characters becomes one space. */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, ' ');
}

/** How many columns a printable text takes; East Asian characters and emoji take two. */
export function widthOf(text: string): number {
  let width = 0;
  for (const { segment } of graphemes.segment(text)) width += WIDE.test(segment) ? 2 : 1;
  return width;
}

/** The text in exactly so many columns: cut with an ellipsis, or filled up with spaces on the right. */
export function fill(text: string, columns: number): string {
  const cutText = cut(text, columns);
  return cutText + ' '.repeat(Math.max(0, columns - widthOf(cutText)));
}

/** The text in at most so many columns. Only as much of a long text is looked at as can be shown. */
export function cut(text: string, columns: number): string {
  if (columns < 1) return '';
  let shown = '';
  let width = 0;
  for (const { segment } of graphemes.segment(text)) {
    const next = width + (WIDE.test(segment) ? 2 : 1);
    if (next > columns) return dropLast(shown, columns) + ELLIPSIS;
    shown += segment;
    width = next;
  }
  return shown;
}

function dropLast(text: string, columns: number): string {
  let kept = text;
  while (widthOf(kept) > columns - 1)
    kept = [...graphemes.segment(kept)]
      .slice(0, -1)
      .map((s) => s.segment)
      .join('');
  return kept;
}

/** A number for people: at most six significant digits, and at most ten characters. */
export function shortNumber(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '-∞';
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const text = String(Number(value.toPrecision(6)));
  return text.length <= 10 ? text : value.toExponential(2);
}

/** `kl=0.02, loss=0.41`: named numbers, by name. */
export function numbersText(numbers: Readonly<Record<string, number>>): string {
  const names = Object.keys(numbers).sort();
  return names.map((name) => `${name}=${shortNumber(numbers[name] ?? Number.NaN)}`).join(', ');
}
