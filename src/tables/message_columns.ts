import {
  create,
  type DescField,
  type DescMessage,
  type JsonObject,
  type MessageShape,
  ScalarType,
  toJson,
} from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import type { Cell, Column, ColumnType } from './column.ts';

const JSON_TEXT = /_json$/;
const WHOLE = new Set([
  ScalarType.INT32,
  ScalarType.INT64,
  ScalarType.UINT32,
  ScalarType.UINT64,
  ScalarType.SINT32,
  ScalarType.SINT64,
]);

/**
 * Returns a column for each field of a message, so that a table has every field. Fields of JSON text lose `_json` in
 * their names. Lists, maps and messages become JSON in the form of the API; statuses small words; durations seconds.
 * Empty text, lists and maps, and what is unset, is null.
 */
export function messageColumns<Desc extends DescMessage>(
  schema: Desc,
  renamed: Readonly<Record<string, string>> = {},
): Column<MessageShape<Desc>>[] {
  return schema.fields.map((field) => ({
    name: renamed[field.name] ?? field.name.replace(JSON_TEXT, ''),
    type: typeOf(field),
    read: readerOf(schema, field),
  }));
}

function typeOf(field: DescField): ColumnType {
  if (field.fieldKind === 'enum') return 'text';
  if (field.fieldKind === 'message' && field.message.typeName === TimestampSchema.typeName) return 'time';
  if (field.fieldKind === 'message' && field.message.typeName === DurationSchema.typeName) return 'number';
  if (field.fieldKind !== 'scalar') return 'json';
  if (WHOLE.has(field.scalar)) return 'integer';
  if (field.scalar === ScalarType.BOOL) return 'boolean';
  if (field.scalar === ScalarType.STRING) return JSON_TEXT.test(field.name) ? 'json' : 'text';
  if (field.scalar === ScalarType.DOUBLE || field.scalar === ScalarType.FLOAT) return 'number';
  throw new Error(`no table has the type of ${field.name}`);
}

function readerOf<Desc extends DescMessage>(schema: Desc, field: DescField): (message: MessageShape<Desc>) => Cell {
  const type = typeOf(field);
  const fieldOf = (message: MessageShape<Desc>) => (message as Record<string, unknown>)[field.localName];
  if (type === 'json' && field.fieldKind !== 'scalar') {
    return (message) => {
      if (!reflect(schema, message).isSet(field)) return null;
      const alone = create(schema, { [field.localName]: fieldOf(message) } as never);
      return JSON.stringify((toJson(schema, alone) as JsonObject)[field.jsonName]);
    };
  }
  return (message) => {
    const value = fieldOf(message);
    if (value === undefined || value === '') return null;
    if (type === 'integer') return BigInt(value as number);
    if (field.fieldKind === 'enum') return wordOf(field.enum.value[value as number]?.name, field.enum.sharedPrefix);
    if (type === 'number' && field.fieldKind === 'message') return secondsOf(value as Duration);
    return value as string | number | boolean | Timestamp;
  };
}

/** Returns `completed` for STATUS_COMPLETED, and null for an unspecified value. */
function wordOf(name = '', prefix = ''): string | null {
  const word = name.toLowerCase().slice(prefix.length);
  return word === '' || word === 'unspecified' ? null : word;
}

function secondsOf({ seconds, nanos }: Duration): number {
  return Number(seconds) + nanos / 1e9;
}
