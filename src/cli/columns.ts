/**
 * Text in a fixed number of columns. Text that users wrote (names, observations) is shown without control characters,
 * so that it can neither break a line nor control the terminal.
 */
import { type DescMessage, type MessageShape, toJsonString } from '@bufbuild/protobuf';
import pc from 'picocolors';
import type { CliContext, Output } from './context.ts';

export type Paint = ReturnType<typeof pc.createColors>;

/**
 * Returns the colours for an output. Colours are used on a terminal only, and not if NO_COLOR is set or TERM is `dumb`.
 */
export function paintFor(output: Output, env: CliContext['env']): Paint {
  const colours = output.isTTY === true && (env.NO_COLOR ?? '') === '' && env.TERM !== 'dumb';
  return pc.createColors(colours);
}

const DEFAULT_COLUMNS = 80;
const LEAST_COLUMNS = 76;

/** Returns the width of lines: that of the terminal, else the variable COLUMNS, else 80. At least 76. */
export function columnsOf({ stdout, env }: Pick<CliContext, 'stdout' | 'env'>): number {
  const columns = stdout.columns ?? (Number.parseInt(env.COLUMNS ?? '', 10) || DEFAULT_COLUMNS);
  return Math.max(LEAST_COLUMNS, columns);
}

const ELLIPSIS = '…';
/** Characters that control a terminal, reorder text, or are invisible. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]+/gu;
const WIDE =
  /\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]|[\u{20000}-\u{3fffd}]/u;
const graphemes = new Intl.Segmenter('en', { granularity: 'grapheme' });

/** Returns the text as one line: each run of line breaks and other control characters becomes one space. */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, ' ');
}

/** Like `printable`, for a text of several lines. */
export function printableLines(text: string): string {
  return text.split('\n').map(printable).join('\n');
}

/** Returns how many columns a printable text takes. East Asian characters and emoji take two. */
export function widthOf(text: string): number {
  let width = 0;
  for (const { segment } of graphemes.segment(text)) width += WIDE.test(segment) ? 2 : 1;
  return width;
}

/** Returns the text in exactly `columns` columns: cut with an ellipsis, or padded with spaces on the right. */
export function fill(text: string, columns: number): string {
  const cutText = cut(text, columns);
  return cutText + ' '.repeat(Math.max(0, columns - widthOf(cutText)));
}

/** Returns the text in at most `columns` columns. Reads only as much of a long text as can be shown. */
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
  let shortened = text;
  while (widthOf(shortened) > columns - 1)
    shortened = [...graphemes.segment(shortened)]
      .slice(0, -1)
      .map((s) => s.segment)
      .join('');
  return shortened;
}

/** Formats a number with at most six significant digits and at most ten characters. */
export function shortNumber(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '-∞';
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const text = String(Number(value.toPrecision(6)));
  return text.length <= 10 ? text : value.toExponential(2);
}

/** Formats named numbers, sorted by name: `kl=0.02, loss=0.41`. */
export function numbersText(numbers: Readonly<Record<string, number>>): string {
  const names = Object.keys(numbers).sort();
  return names.map((name) => `${name}=${shortNumber(numbers[name] ?? Number.NaN)}`).join(', ');
}

// JSON for the option `--json`. Strings have escapes for characters that control a terminal or are invisible, so that
// names and texts of others can do neither. Their values are unchanged.

/** JSON as over HTTP: default values are included. */
export const JSON_FORM = { alwaysEmitImplicit: true };

/** Returns a value as JSON in one line. */
export function valueJson(value: unknown, replacer?: (key: string, value: unknown) => unknown): string {
  return escaped(JSON.stringify(value, replacer));
}

/** Returns a message as JSON in one line, as the server sends it over HTTP. */
export function messageJson<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): string {
  return escaped(toJsonString(schema, message, JSON_FORM));
}

/** In JSON without line breaks, such characters are in strings only. */
function escaped(json: string): string {
  return json.replace(UNPRINTABLE, (characters) => {
    let escapes = '';
    for (let i = 0; i < characters.length; i += 1)
      escapes += `\\u${characters.charCodeAt(i).toString(16).padStart(4, '0')}`;
    return escapes;
  });
}

/** Returns `1 step`, `2 steps`, `0 trajectories`. */
export function counted(count: bigint | number | string, noun: string): string {
  return `${count} ${BigInt(count) === 1n ? noun : pluralOf(noun)}`;
}

function pluralOf(noun: string): string {
  if (noun.endsWith('y')) return `${noun.slice(0, -1)}ies`;
  return noun.endsWith('ch') ? `${noun}es` : `${noun}s`;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** `999 B`, `1.5 KiB`, `120 MiB` */
export function bytesText(bytes: bigint): string {
  let value = Number(bytes);
  let unit = 0;
  for (; value >= 999.5 && unit < UNITS.length - 1; unit += 1) value /= 1024;
  const digits = unit > 0 && value < 9.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}
