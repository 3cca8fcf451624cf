import { create, type DescField, type DescMessage, isFieldSet, type Message, ScalarType } from '@bufbuild/protobuf';

/**
 * A message as @grpc/proto-loader represents it: set fields only, 64-bit integers as decimal text, enums as numbers.
 */
export type Plain = Record<string, unknown>;

const LONGS: readonly ScalarType[] = [
  ScalarType.INT64,
  ScalarType.UINT64,
  ScalarType.SINT64,
  ScalarType.FIXED64,
  ScalarType.SFIXED64,
];

export function toPlain(desc: DescMessage, message: Message): Plain {
  const plain: Plain = {};
  for (const field of desc.fields) {
    if (!isFieldSet(message, field)) continue;
    plain[field.localName] = mapField(field, (message as unknown as Plain)[field.localName], (value) =>
      field.message === undefined ? scalarToPlain(value) : toPlain(field.message, value as Message),
    );
  }
  return plain;
}

export function fromPlain(desc: DescMessage, plain: Plain): Message {
  const init: Plain = {};
  for (const field of desc.fields) {
    const value = plain[field.localName];
    if (value === undefined || value === null) continue;
    init[field.localName] = mapField(field, value, (item) =>
      field.message === undefined ? scalarFromPlain(field, item) : fromPlain(field.message, item as Plain),
    );
  }
  return create(desc, init);
}

function mapField(field: DescField, value: unknown, convert: (item: unknown) => unknown): unknown {
  if (field.fieldKind === 'list') return (value as unknown[]).map(convert);
  if (field.fieldKind !== 'map') return convert(value);
  return Object.fromEntries(Object.entries(value as Plain).map(([key, item]) => [key, convert(item)]));
}

function scalarToPlain(value: unknown): unknown {
  if (typeof value === 'bigint') return value.toString();
  return value instanceof Uint8Array ? Buffer.from(value) : value;
}

function scalarFromPlain(field: DescField, value: unknown): unknown {
  if (field.scalar !== undefined && LONGS.includes(field.scalar)) return BigInt(value as string);
  return field.scalar === ScalarType.BYTES ? new Uint8Array(value as Buffer) : value;
}
