import { formatInstant, type Instant, parseInstant } from '../../../domain/instant.ts';

/** Conversions of values to and from columns, the same on both engines. */

export function isSet(flag: boolean | bigint | number): boolean {
  return flag === true || flag === 1n || flag === 1;
}

export function flag(value: boolean): 0 | 1 {
  return value ? 1 : 0;
}

/** Binds an optional flag. */
export function bindFlag(value: boolean | undefined): 0 | 1 | null {
  return value === undefined ? null : flag(value);
}

/** NaN is bound as text, because SQLite would store NULL. Postgres parses it. */
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

export function readOptionalTime(text: string | null): Instant | undefined {
  return text === null ? undefined : parseInstant(text);
}

/** Encodes a map of strings with sorted keys, so that equal maps are equal texts. */
export function bindLabels(labels: ReadonlyMap<string, string>): string {
  return JSON.stringify(Object.fromEntries([...labels].sort(byKey)));
}

export function readLabels(text: string): Map<string, string> {
  return new Map(Object.entries(JSON.parse(text) as Record<string, string>));
}

/**
 * Encodes a map of numbers. Numbers that JSON lacks are strings, as in protobuf's JSON (`"NaN"`, `"-Infinity"`,
 * `"-0"`).
 */
export function bindMetrics(metrics: ReadonlyMap<string, number>): string {
  if (metrics.size === 0) return '{}';
  const entries = [...metrics].sort(byKey);
  return JSON.stringify(Object.fromEntries(entries.map(([key, value]) => [key, numberJson(value)])));
}

/** Returns a number for JSON. */
export function numberJson(value: number): number | string {
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

const NO_ITEMS: readonly string[] = [];

/** Reads a JSON array of texts. */
export function readList(text: string): readonly string[] {
  return text === '[]' ? NO_ITEMS : (JSON.parse(text) as string[]);
}

function byKey(a: readonly [string, unknown], b: readonly [string, unknown]): number {
  return a[0] < b[0] ? -1 : 1;
}

/** Returns the columns of an update without those whose values are undefined, which do not change. */
export function changedColumns<Columns extends object>(
  columns: Columns,
): { [Name in keyof Columns]?: Exclude<Columns[Name], undefined> } {
  const changed = Object.entries(columns).filter(([, value]) => value !== undefined);
  return Object.fromEntries(changed) as { [Name in keyof Columns]?: Exclude<Columns[Name], undefined> };
}

/** Returns whether one of these columns of a row would change. */
export function differs<Row extends object>(row: Row, columns: Partial<Row>): boolean {
  return Object.entries(columns).some(([column, value]) => row[column as keyof Row] !== value);
}

/** Last time that the databases can represent. */
const LAST = parseInstant('9999-12-31T23:59:59.999999Z');

/** Rounds a bound up to six fractional digits, which is the precision of the database's times. */
export function bindTimeBound(time: Instant): string {
  const below = time % 1000n;
  const bound = below === 0n ? time : time - below + (below > 0n ? 1000n : 0n);
  return formatInstant(bound > LAST ? LAST : bound, 6);
}
