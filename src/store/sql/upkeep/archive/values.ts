import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import { isTimeText } from '../../kit/tables/forms.ts';
import type { NamedColumn } from '../../kit/tables/table.ts';
import { isSet, readReal } from '../../kit/values.ts';
import type { PlainColumn } from './nouns.ts';

/** A value of a record: integers and bytes are texts, times have six digits, and numbers that JSON lacks are texts. */
export type RecordValue = string | number | boolean | null;

/** Returns a value of a row as both engines read it, in the form that both write to archives. */
export function toRecord({ type }: NamedColumn, value: unknown): RecordValue {
  if (value === null || value === undefined) return null;
  if (type === 'int8') return `${value as bigint}`;
  if (type === 'bool') return isSet(value as boolean | bigint);
  if (type === 'float8') return realToRecord(readReal(value as number | string));
  if (type === 'bytea') return Buffer.from(value as Uint8Array).toString('base64');
  if (type === 'timestamptz') return formatInstant(parseInstant(value as string), 6);
  return value as string;
}

export function realToRecord(value: number): RecordValue {
  if (Object.is(value, -0)) return '-0';
  return Number.isFinite(value) ? value : String(value);
}

export const INTEGER = /^(0|-?[1-9][0-9]{0,18})$/;
const REAL = new Set<unknown>(['-0', 'NaN', 'Infinity', '-Infinity']);
export const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Returns the value for `BulkRows.insert`. `place` names the record. Errors: ARCHIVE_INVALID. */
export function fromRecord(column: PlainColumn, value: unknown, place: string): unknown {
  const bound = value === null && !column.nullable ? undefined : bind(column, value);
  if (bound === undefined) throw archiveInvalid(place, `"${column.name}" has no value of its type (${column.type})`);
  return bound;
}

function bind({ type }: NamedColumn, value: unknown): unknown {
  if (value === null) return null;
  if (type === 'bool') return typeof value === 'boolean' ? Number(value) : undefined;
  if (type === 'float8') return realFromRecord(value);
  // Postgres cannot store U+0000.
  if (typeof value !== 'string' || value.includes('\u0000')) return undefined;
  if (type === 'int8') return INTEGER.test(value) ? BigInt(value) : undefined;
  if (type === 'uuid') return UUID.test(value) ? value : undefined;
  if (type === 'timestamptz') return isTimeText(value, 6) ? value : undefined;
  if (type === 'bytea') return Buffer.from(value, 'base64');
  return value;
}

/** Returns undefined if the value is no number. NaN is bound as text (W11). */
export function realFromRecord(value: unknown): number | string | undefined {
  if (typeof value === 'number') return value;
  if (!REAL.has(value)) return undefined;
  return value === 'NaN' ? 'NaN' : Number(value);
}

/** A text of a record. Errors: ARCHIVE_INVALID. */
export function textOf(record: ArchiveRecord, name: string): string {
  const value = record[name];
  if (typeof value === 'string') return value;
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no text`);
}

/** An integer of a record, at least 0. Errors: ARCHIVE_INVALID. */
export function countOf(record: ArchiveRecord, name: string): bigint {
  const value = record[name];
  if (typeof value === 'string' && INTEGER.test(value) && !value.startsWith('-')) return BigInt(value);
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no count`);
}

/** A list of objects of a record. Errors: ARCHIVE_INVALID. */
export function listOf(record: ArchiveRecord, name: string): readonly ArchiveRecord[] {
  const value: unknown = record[name];
  if (Array.isArray(value) && value.every((each) => typeof each === 'object' && each !== null)) {
    return value as ArchiveRecord[];
  }
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no list of objects`);
}
