import { formatInstant, type Instant, parseInstant } from '../../domain/instant.ts';

/** How values stand in columns, the same on both engines. */

export function isSet(flag: boolean | bigint | number): boolean {
  return flag === true || flag === 1n || flag === 1;
}

export function flag(value: boolean): 0 | 1 {
  return value ? 1 : 0;
}

/** One that may be missing. */
export function bindFlag(value: boolean | undefined): 0 | 1 | null {
  return value === undefined ? null : flag(value);
}

/** NaN is bound as text, which SQLite keeps (it would make a NULL of it) and Postgres reads. */
export function bindReal(value: number): number | string {
  return Number.isNaN(value) ? 'NaN' : value;
}

export function readReal(value: number | string | bigint): number {
  return typeof value === 'number' ? value : Number(value);
}

export function bindOptionalReal(value: number | undefined): number | string | null {
  return value === undefined ? null : bindReal(value);
}

export function readOptionalReal(value: number | string | bigint | null): number | undefined {
  return value === null ? undefined : readReal(value);
}

export function bindDigest(digest: string): Buffer {
  return Buffer.from(digest, 'hex');
}

export function readDigest(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex');
}

/** Client times keep all nine digits, as text. */
export function bindClientTime(time: Instant | undefined): string | null {
  return time === undefined ? null : formatInstant(time);
}

export function readOptionalTime(text: string | null): Instant | undefined {
  return text === null ? undefined : parseInstant(text);
}

/** A map of strings, keys sorted, so that equal maps are equal texts. */
export function bindLabels(labels: ReadonlyMap<string, string>): string {
  return JSON.stringify(Object.fromEntries([...labels].sort(byKey)));
}

export function readLabels(text: string): Map<string, string> {
  return new Map(Object.entries(JSON.parse(text) as Record<string, string>));
}

/** A map of numbers; what JSON has no number for is a string, as in protobuf's JSON (`"NaN"`, `"-Infinity"`, `"-0"`). */
export function bindMetrics(metrics: ReadonlyMap<string, number>): string {
  if (metrics.size === 0) return '{}';
  const entries = [...metrics].sort(byKey);
  return JSON.stringify(Object.fromEntries(entries.map(([key, value]) => [key, metricJson(value)])));
}

function metricJson(value: number): number | string {
  if (Object.is(value, -0)) return '-0';
  return Number.isFinite(value) ? value : String(value);
}

export function readMetrics(text: string): Map<string, number> {
  const metrics = new Map<string, number>();
  if (text === '{}') return metrics;
  const entries = JSON.parse(text) as Record<string, number | string>;
  for (const key of Object.keys(entries)) metrics.set(key, Number(entries[key]));
  return metrics;
}

function byKey(a: readonly [string, unknown], b: readonly [string, unknown]): number {
  return a[0] < b[0] ? -1 : 1;
}

/** The last moment that the database's times can say. */
const LAST = parseInstant('9999-12-31T23:59:59.999999Z');

/** A bound for comparing with the database's times, which have six digits: the first of them that is not before. */
export function bindTimeBound(time: Instant): string {
  const below = time % 1000n;
  const bound = below === 0n ? time : time - below + (below > 0n ? 1000n : 0n);
  return formatInstant(bound > LAST ? LAST : bound, 6);
}
