import {
  create,
  type DescField,
  type DescMessage,
  type MessageInitShape,
  type MessageShape,
  ScalarType,
} from '@bufbuild/protobuf';

type Fields<Desc extends DescMessage> = Omit<MessageShape<Desc>, '$typeName' | '$unknown'>;

/** All fields of a message, undefined for unset ones. A missing field does not compile. */
type AllFields<Desc extends DescMessage> = {
  readonly [Name in keyof Required<Fields<Desc>>]: Fields<Desc>[Name] | undefined;
};

export function messageOf<Desc extends DescMessage>(schema: Desc, fields: AllFields<Desc>): MessageShape<Desc> {
  return create(schema, fields as unknown as MessageInitShape<Desc>);
}

/** Maximum size of a field's tag and length. */
const FIELD_BYTES = 8;
/** Maximum size of a number. */
const NUMBER_BYTES = 10;

type SizeOf = (value: never) => number;

/** Returns a function that computes an upper bound of the encoded size of a message (RD3). */
export function sizerOf<Desc extends DescMessage>(schema: Desc): (message: MessageShape<Desc>) => number {
  return messageSizer(schema) as (message: MessageShape<Desc>) => number;
}

function messageSizer(schema: DescMessage): (message: Readonly<Record<string, unknown>>) => number {
  const fields = schema.fields.map((field) => ({ localName: field.localName, sizeOf: fieldSizer(field) }));
  return (message) => {
    let bytes = 0;
    for (const { localName, sizeOf } of fields) {
      const value = message[localName];
      if (value !== undefined && value !== '') bytes += FIELD_BYTES + sizeOf(value as never);
    }
    return bytes;
  };
}

function fieldSizer(field: DescField): SizeOf {
  const sizeOf = valueSizer(field);
  switch (field.fieldKind) {
    case 'list':
      return (list: readonly never[]) => list.reduce((bytes, value) => bytes + FIELD_BYTES + sizeOf(value), 0);
    case 'map':
      return (map: Readonly<Record<string, never>>) =>
        Object.entries(map).reduce((bytes, [key, value]) => bytes + 3 * FIELD_BYTES + utf8(key) + sizeOf(value), 0);
    default:
      return sizeOf;
  }
}

function valueSizer({ message, scalar }: DescField): SizeOf {
  if (message !== undefined) return messageSizer(message);
  if (scalar === ScalarType.STRING) return utf8;
  return scalar === ScalarType.BYTES ? (bytes: Uint8Array) => bytes.length : () => NUMBER_BYTES;
}

function utf8(text: string): number {
  return Buffer.byteLength(text);
}

/** Returns how many items, from the first on, have at most `room` bytes together. */
export function countFitting<Item>(items: readonly Item[], bytesOf: (item: Item) => number, room: number): number {
  let left = room;
  const cut = items.findIndex((item) => {
    left -= bytesOf(item);
    return left < 0;
  });
  return cut === -1 ? items.length : cut;
}

export function totalBytes<Item>(items: readonly Item[], bytesOf: (item: Item) => number): number {
  return items.reduce((bytes, item) => bytes + bytesOf(item), 0);
}
