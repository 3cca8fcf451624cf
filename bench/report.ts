import os from 'node:os';
import type { Result } from './bench.ts';

/** Formats a result for scripts: one JSON object per line. */
export function jsonLine(result: Result, outsideCores: number): string {
  return JSON.stringify({ ...result, outside_cores: round(outsideCores, 2) }, (_key, value: unknown) =>
    typeof value === 'number' ? round(value, 4) : value,
  );
}

export function machine(): string {
  const [cpu] = os.cpus();
  const memory = Math.round(os.totalmem() / 2 ** 30);
  return `${os.availableParallelism()} cores (${cpu?.model.trim() ?? 'unknown'}), ${memory} GiB, ${os.type()} ${os.release()}, Node ${process.version}, ${new Date().toISOString().slice(0, 16)}Z`;
}

const HEADINGS = ['bench', 'engine', 'value', '', 'against', 'ratio', 'aim', 'spread'] as const;

/** Formats results for people. Results that missed their aim are marked. */
export function table(results: readonly Result[]): string {
  const rows = results.map((result) => [
    result.bench,
    result.engine,
    number(result.value),
    result.unit,
    result.ceiling === undefined ? '' : number(result.ceiling),
    result.ratio === undefined ? '' : ratioText(result.ratio),
    result.aim === undefined ? '' : `${result.aim}${meetsAim(result) ? '' : '  missed'}`,
    `${number(result.spread[0])} to ${number(result.spread[1])}`,
  ]);
  const all = [[...HEADINGS], ...rows];
  const widths = HEADINGS.map((_, i) => Math.max(...all.map((row) => row[i]!.length)));
  const numeric = new Set([2, 4, 5]);
  const line = (row: readonly string[]) =>
    row
      .map((cell, i) => (numeric.has(i) ? cell.padStart(widths[i]!) : cell.padEnd(widths[i]!)))
      .join('  ')
      .trimEnd();
  return `${all.map(line).join('\n')}\n`;
}

/** Returns whether a result meets its aim, which is about the ratio, or about the value if there is no ratio. */
export function meetsAim({ aim, ratio, value }: Result): boolean {
  const [, sign, bound] = /^(>=|<=) ([\d.]+)/.exec(aim ?? '') ?? [];
  if (sign === undefined) return true;
  const measured = ratio ?? value;
  return sign === '>=' ? measured >= Number(bound) : measured <= Number(bound);
}

/** Shares of a few percent need more digits. */
export function ratioText(ratio: number): string {
  return ratio.toFixed(ratio < 0.1 ? 4 : 2);
}

function number(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US');
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(3);
}

function round(value: number, digits: number): number {
  return Math.round(value * 10 ** digits) / 10 ** digits;
}
