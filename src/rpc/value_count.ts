import { type DescField, type DescMessage, hasOption, ScalarType } from '@bufbuild/protobuf';
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';

/** The decoder goes no deeper, and refuses what does. */
const MAX_DEPTH = 100;
/** How enums are encoded. */
const ENUM = ScalarType.INT32;

/** One message being looked at. */
interface Look {
  readonly reader: BinaryReader;
  /** How many more values there may be; below 0 there are too many. */
  left: number;
}

/**
 * Says of an encoded message whether it holds more values than it may, without decoding it: every message, map entry, element of a list and unknown
 * field counts, wherever it stands, since each becomes an object or is held to its rules one by one. Packed numbers without rules are free, and so
 * are single fields. Reads the wire as the decoder does, which goes by the kind of a field and not by the wire type that came; of what is malformed
 * it says what it saw until there, and leaves the refusal to the decoder.
 */
export class ValueCount {
  readonly #most: number;
  readonly #fields = new Map<DescMessage, ReadonlyMap<number, DescField>>();

  constructor(most: number) {
    this.#most = most;
  }

  exceededIn(schema: DescMessage, message: Uint8Array): boolean {
    if (message.length <= this.#most) return false; // a value takes a byte at least
    const look: Look = { reader: new BinaryReader(message), left: this.#most };
    try {
      this.#message(schema, look, message.length, 1);
    } catch {
      // Malformed: the decoder says how.
    }
    return look.left < 0;
  }

  /** The same of JSON: what stands between brackets and commas counts, whatever it is. */
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

  #message(schema: DescMessage, look: Look, end: number, depth: number): void {
    if (depth > MAX_DEPTH) throw new Error('too deep');
    const { reader } = look;
    const fields = this.#fieldsOf(schema);
    while (reader.pos < end && look.left >= 0) {
      const [number, wireType] = reader.tag();
      const field = fields.get(number);
      if (field !== undefined) {
        this.#field(field, wireType, look, depth);
        continue;
      }
      look.left -= 1;
      reader.skip(wireType, number, MAX_DEPTH - depth);
    }
  }

  #field(field: DescField, wireType: WireType, look: Look, depth: number): void {
    const { reader } = look;
    if (field.fieldKind === 'scalar' || field.fieldKind === 'enum') {
      skipScalar(reader, field.scalar ?? ENUM);
    } else if (field.fieldKind === 'list' && field.listKind !== 'message') {
      skipList(field, wireType, look);
    } else {
      look.left -= 1;
      if (field.fieldKind === 'map') this.#entry(field, look, depth);
      else this.#message(field.message, look, endOf(reader), depth + 1);
    }
  }

  #entry(field: DescField & { fieldKind: 'map' }, look: Look, depth: number): void {
    const { reader } = look;
    const end = endOf(reader);
    while (reader.pos < end && look.left >= 0) {
      const [number, wireType] = reader.tag();
      if (number === 1) skipScalar(reader, field.mapKey);
      else if (number !== 2) reader.skip(wireType, number, MAX_DEPTH - depth);
      else if (field.mapKind === 'message') this.#message(field.message, look, endOf(reader), depth + 1);
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

function skipList(field: DescField & { fieldKind: 'list' }, wireType: WireType, look: Look): void {
  const { reader } = look;
  const type = field.scalar ?? ENUM;
  if (wireType !== WireType.LengthDelimited || type === ScalarType.STRING || type === ScalarType.BYTES) {
    look.left -= 1;
    skipScalar(reader, type);
    return;
  }
  const end = endOf(reader);
  if (!hasOption(field, rules)) {
    reader.pos = end;
    return;
  }
  for (; reader.pos < end && look.left >= 0; look.left -= 1) skipScalar(reader, type);
}

/** Where what begins here with its length ends. */
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
