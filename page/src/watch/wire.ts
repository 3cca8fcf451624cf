/**
 * Fields of protobuf messages, for messages that only wrap others. The first script of the page and the worker contain
 * this instead of the reader of a library, which would be most of their bytes.
 */

const [VARINT, FIXED_64, BYTES, FIXED_32] = [0, 1, 2, 5];

export interface Field {
  readonly number: number;
  /** Of a field with a variable length. Empty for others. */
  readonly bytes: Uint8Array;
  /** Of a varint. 0 for others. */
  readonly value: number;
}

/** Encodes a field that has bytes, or another message. */
export function bytesField(number: number, bytes: Uint8Array): Uint8Array {
  return joined([varint(number * 8 + BYTES), varint(bytes.length), bytes]);
}

export function textField(number: number, text: string): Uint8Array {
  return bytesField(number, new TextEncoder().encode(text));
}

export function varintField(number: number, value: number): Uint8Array {
  return joined([varint(number * 8 + VARINT), varint(value)]);
}

export function joined(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  let left = value;
  for (; left > 127; left = Math.floor(left / 128)) bytes.push((left % 128) + 128);
  return Uint8Array.of(...bytes, left);
}

/** Returns the fields of a message, in their order. Throws if it ends within a field. */
export function* fieldsOf(message: Uint8Array): Generator<Field, void, undefined> {
  let at = 0;
  const readVarint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = message[at];
      if (byte === undefined) throw new Error('the message ends within a field');
      at += 1;
      value += (byte % 128) * factor;
      if (byte < 128) return value;
    }
  };
  const take = (length: number) => {
    if (at + length > message.length) throw new Error('the message ends within a field');
    at += length;
    return message.subarray(at - length, at);
  };
  while (at < message.length) {
    const tag = readVarint();
    const [number, type] = [Math.floor(tag / 8), tag % 8];
    if (type === VARINT) yield { number, bytes: NONE, value: readVarint() };
    else if (type === BYTES) yield { number, bytes: take(readVarint()), value: 0 };
    else if (type === FIXED_64 || type === FIXED_32) take(type === FIXED_64 ? 8 : 4);
    else throw new Error(`the message has a field of the unknown type ${type}`);
  }
}

const NONE = new Uint8Array();
