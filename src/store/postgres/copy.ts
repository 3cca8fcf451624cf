import pg from 'pg';
import type { NamedColumn, PostgresType } from '../sql/kit/tables/table.ts';

type Callback = (error: Error | null, result: pg.QueryResult) => void;

interface CopyConnection {
  readonly stream: { cork(): void; uncork(): void };
  query(text: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
}

/**
 * `COPY … FROM STDIN` that sends its rows immediately, so that it can be pipelined. If it fails, Postgres discards the
 * rows, as its protocol specifies.
 */
export class CopyQuery extends pg.Query {
  constructor(text: string, rows: Buffer, callback: Callback) {
    super(text, callback as never);
    this.submit = (connection) => {
      const copying = connection as unknown as CopyConnection;
      copying.stream.cork();
      copying.query(text);
      copying.sendCopyFromChunk(rows);
      copying.endCopyFrom();
      copying.stream.uncork();
    };
  }

  /** `pg` requires this handler. The rows have already been sent. */
  handleCopyInResponse(): void {}
}

const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
/** Microseconds from 1970 to 2000, the epoch of Postgres. */
const EPOCH_MICROS = 946_684_800_000_000n;

const HEAD_BYTES = 64;
/** Typical bytes of a value with its size. A buffer that is too small is doubled. */
const USUAL_BYTES = 16;

/**
 * Encodes rows in Postgres' binary format. Values are bound as in other statements: flags are 0 or 1, times are texts
 * in UTC, and NaN may be a text.
 */
export function encodeCopy<Name extends PropertyKey>(
  columns: readonly CopiedColumn<Name>[],
  rows: readonly Readonly<Record<Name, unknown>>[],
): Buffer {
  const writer = new BinaryWriter(HEAD_BYTES + rows.length * columns.length * USUAL_BYTES);
  writer.start(SIGNATURE);
  for (const row of rows) writer.row(columns, row);
  return writer.finish();
}

/**
 * Encodes an array in Postgres' binary format, as a parameter of a statement. `pg` writes an array as text, and each
 * value of type bytea in it as twice as many digits.
 */
export function encodeArray(type: PostgresType, values: readonly unknown[]): Buffer {
  const writer = new BinaryWriter(HEAD_BYTES + values.length * USUAL_BYTES);
  writer.start(arrayHead(TYPE_IDS[type], values.length));
  for (const value of values) writer.value(type, value);
  return writer.written();
}

/**
 * Encodes an array of rows of a composite type in Postgres' binary format. `typeId` is the object id of the type, and
 * `columns` are all its columns.
 */
export function encodeRows(
  typeId: number,
  columns: readonly NamedColumn[],
  rows: readonly (readonly unknown[])[],
): Buffer {
  const writer = new BinaryWriter(HEAD_BYTES + rows.length * columns.length * USUAL_BYTES);
  writer.start(arrayHead(typeId, rows.length));
  for (const row of rows) writer.composite(columns, row);
  return writer.written();
}

function arrayHead(typeId: number, length: number): Buffer {
  const head = Buffer.allocUnsafe(20);
  const [dimensions, mayHaveNulls, lowerBound] = [1, 1, 1];
  for (const [i, value] of [dimensions, mayHaveNulls, typeId, length, lowerBound].entries()) {
    head.writeUInt32BE(value, 4 * i);
  }
  return head;
}

/** Object ids of the types, which are the same in every Postgres. */
const TYPE_IDS: Readonly<Record<PostgresType, number>> = {
  bool: 16,
  bytea: 17,
  int8: 20,
  text: 25,
  float8: 701,
  timestamptz: 1184,
  uuid: 2950,
};

interface CopiedColumn<Name> {
  readonly name: Name;
  readonly type: PostgresType;
}

class BinaryWriter {
  #bytes: Buffer;
  #length = 0;
  /** Cached, because most rows of a group have the same time. */
  #lastTime = '';
  #lastMicros = 0n;

  constructor(bytes: number) {
    this.#bytes = Buffer.allocUnsafe(bytes);
  }

  start(head: Buffer): void {
    this.#length = head.copy(this.#bytes);
  }

  row<Name extends PropertyKey>(columns: readonly CopiedColumn<Name>[], row: Readonly<Record<Name, unknown>>): void {
    this.#reserve(2);
    this.#length = this.#bytes.writeInt16BE(columns.length, this.#length);
    for (const { name, type } of columns) this.value(type, row[name]);
  }

  composite(columns: readonly NamedColumn[], values: readonly unknown[]): void {
    this.#reserve(8);
    const start = this.#length;
    this.#length = this.#bytes.writeInt32BE(columns.length, start + 4);
    for (let i = 0; i < columns.length; i += 1) {
      const { type } = columns[i]!;
      this.#reserve(4);
      this.#length = this.#bytes.writeInt32BE(TYPE_IDS[type], this.#length);
      this.value(type, values[i]);
    }
    this.#bytes.writeInt32BE(this.#length - start - 4, start);
  }

  finish(): Buffer {
    this.#reserve(2);
    this.#length = this.#bytes.writeInt16BE(-1, this.#length);
    return this.written();
  }

  written(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  value(type: PostgresType, value: unknown): void {
    if (value === null) {
      this.#reserve(4);
      this.#length = this.#bytes.writeInt32BE(-1, this.#length);
    } else if (type === 'text') this.#text(value as string);
    else if (type === 'bytea') this.#blob(value as Uint8Array);
    else if (type === 'uuid') this.#uuid(value as string);
    else if (type === 'bool') this.#flag(value === true || value === 1);
    else if (type === 'float8') {
      this.#size(8);
      this.#length = this.#bytes.writeDoubleBE(Number(value), this.#length);
    } else {
      this.#size(8);
      const whole = type === 'int8' ? (value as bigint) : this.#micros(value as string) - EPOCH_MICROS;
      this.#length = this.#bytes.writeBigInt64BE(whole, this.#length);
    }
  }

  #text(value: string): void {
    this.#reserve(4 + value.length * 3);
    const written = this.#bytes.write(value, this.#length + 4, 'utf8');
    this.#bytes.writeInt32BE(written, this.#length);
    this.#length += 4 + written;
  }

  #blob(value: Uint8Array): void {
    this.#size(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
  }

  #uuid(value: string): void {
    this.#size(16);
    this.#length += this.#bytes.write(value.replaceAll('-', ''), this.#length, 16, 'hex');
  }

  #flag(value: boolean): void {
    this.#size(1);
    this.#bytes[this.#length++] = value ? 1 : 0;
  }

  #micros(time: string): bigint {
    if (time !== this.#lastTime) {
      this.#lastMicros = BigInt(Date.parse(`${time.slice(0, 19)}Z`)) * 1000n + BigInt(time.slice(20, 26));
      this.#lastTime = time;
    }
    return this.#lastMicros;
  }

  /** Writes the size of the next value and reserves space for it. */
  #size(bytes: number): void {
    this.#reserve(4 + bytes);
    this.#length = this.#bytes.writeInt32BE(bytes, this.#length);
  }

  #reserve(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.#length + bytes));
    this.#bytes.copy(larger, 0, 0, this.#length);
    this.#bytes = larger;
  }
}
