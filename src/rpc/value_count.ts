import { type DescField, type DescMessage, hasOption, ScalarType } from '@bufbuild/protobuf';
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';

/** The decoder rejects messages with more levels. */
const MAX_DEPTH = 100;
/** The wire type of enums. */
const ENUM = ScalarType.INT32;

/** The check of one message. */
interface Count {
  readonly reader: BinaryReader;
  /** The number of further values that are allowed. Negative: too many values. */
  left: number;
}

/**
 * Finds out whether an encoded message has more values than allowed, without decoding it. Every message, map entry,
 * list element and unknown field counts, at any depth, because each becomes an object or is validated individually.
 * Packed numbers without rules do not count, nor do single fields. Reads the wire like the decoder, which uses the kind
 * of the field instead of the received wire type. A malformed message is counted up to its fault, and the decoder
 * rejects it.
 */
export class ValueCount {
  readonly #most: number;
  readonly #fields = new Map<DescMessage, ReadonlyMap<number, DescField>>();

  constructor(most: number) {
    this.#most = most;
  }

  exceededIn(schema: DescMessage, message: Uint8Array): boolean {
    if (message.length <= this.#most) return false; // a value takes a byte at least
    const count: Count = { reader: new BinaryReader(message), left: this.#most };
    try {
      this.#message(schema, count, message.length, 1);
    } catch {
      // Malformed: the decoder reports it.
    }
    return count.left < 0;
  }

  /** The same for JSON: everything between brackets and commas counts. */
  exceededInJson(text: Uint8Array): boolean {
    if (text.length <= this.#most) return false;
    let left = this.#most;
    let inString = false;
    for (let at = 0; at < text.length && left >= 0; at += 1) {
      const byte = text[at];
      if (byte === QUOTE) inString = !inString;
      else if (inString) at += byte === BACKSLASH ? 1 : 0;
      else if (byte === COMMA || byte === BRACE || byte === BRACKET) left -= 1;
    }
    return left < 0;
  }

  #message(schema: DescMessage, count: Count, end: number, depth: number): void {
    if (depth > MAX_DEPTH) throw new Error('too deep');
    const { reader } = count;
    const fields = this.#fieldsOf(schema);
    while (reader.pos < end && count.left >= 0) {
      const [number, wireType] = reader.tag();
      const field = fields.get(number);
      if (field !== undefined) {
        this.#field(field, wireType, count, depth);
        continue;
      }
      count.left -= 1;
      reader.skip(wireType, number, MAX_DEPTH - depth);
    }
  }

  #field(field: DescField, wireType: WireType, count: Count, depth: number): void {
    const { reader } = count;
    if (field.fieldKind === 'scalar' || field.fieldKind === 'enum') {
      skipScalar(reader, field.scalar ?? ENUM);
    } else if (field.fieldKind === 'list' && field.listKind !== 'message') {
      skipList(field, wireType, count);
    } else {
      count.left -= 1;
      if (field.fieldKind === 'map') this.#entry(field, count, depth);
      else this.#message(field.message, count, endOf(reader), depth + 1);
    }
  }

  #entry(field: DescField & { fieldKind: 'map' }, count: Count, depth: number): void {
    const { reader } = count;
    const end = endOf(reader);
    while (reader.pos < end && count.left >= 0) {
      const [number, wireType] = reader.tag();
      if (number === 1) skipScalar(reader, field.mapKey);
      else if (number !== 2) reader.skip(wireType, number, MAX_DEPTH - depth);
      else if (field.mapKind === 'message') this.#message(field.message, count, endOf(reader), depth + 1);
      else skipScalar(reader, field.scalar ?? ENUM);
    }
  }

  #fieldsOf(schema: DescMessage): ReadonlyMap<number, DescField> {
    const known = this.#fields.get(schema);
    if (known !== undefined) return known;
    const fields = new Map(schema.fields.map((field) => [field.number, field]));
    this.#fields.set(schema, fields);
    return fields;
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const BRACE = 0x7b;
const BRACKET = 0x5b;

function skipList(field: DescField & { fieldKind: 'list' }, wireType: WireType, count: Count): void {
  const { reader } = count;
  const type = field.scalar ?? ENUM;
  if (wireType !== WireType.LengthDelimited || type === ScalarType.STRING || type === ScalarType.BYTES) {
    count.left -= 1;
    skipScalar(reader, type);
    return;
  }
  const end = endOf(reader);
  if (!hasOption(field, rules)) {
    reader.pos = end;
    return;
  }
  for (; reader.pos < end && count.left >= 0; count.left -= 1) skipScalar(reader, type);
}

/** Returns the end of a length-prefixed value that begins here. */
function endOf(reader: BinaryReader): number {
  const length = reader.uint32();
  return reader.pos + length;
}

function skipScalar(reader: BinaryReader, type: ScalarType): void {
  switch (type) {
    case ScalarType.STRING:
    case ScalarType.BYTES:
      reader.pos = endOf(reader);
      return;
    case ScalarType.DOUBLE:
    case ScalarType.FIXED64:
    case ScalarType.SFIXED64:
      reader.pos += 8;
      return;
    case ScalarType.FLOAT:
    case ScalarType.FIXED32:
    case ScalarType.SFIXED32:
      reader.pos += 4;
      return;
    default:
      reader.uint32();
  }
}
