import type { Connection, Submittable } from 'pg';
import type { PostgresType } from './rows.ts';

/** `COPY … FROM STDIN` of bytes that are there already; `pg` runs it as it runs a query. */
export class CopyIn implements Submittable {
  readonly done: Promise<void>;
  private readonly text: string;
  private readonly data: Buffer;
  private readonly settle = Promise.withResolvers<void>();

  constructor(text: string, data: Buffer) {
    this.text = text;
    this.data = data;
    this.done = this.settle.promise;
  }

  submit(connection: Connection): void {
    (connection as unknown as { query(text: string): void }).query(this.text);
  }

  handleCopyInResponse(connection: { sendCopyFromChunk(chunk: Buffer): void; endCopyFrom(): void }): void {
    connection.sendCopyFromChunk(this.data);
    connection.endCopyFrom();
  }

  handleCommandComplete(): void {}

  handleReadyForQuery(): void {
    this.settle.resolve();
  }

  handleError(error: Error): void {
    this.settle.reject(error);
  }
}

const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
/** Microseconds from 1970 to 2000, where Postgres begins to count. */
const EPOCH_MICROS = 946_684_800_000_000n;

/** Rows in Postgres' binary format. */
export function encodeCopy(types: readonly PostgresType[], rows: readonly (readonly unknown[])[]): Buffer {
  const out = new CopyWriter();
  for (const row of rows) out.row(types, row);
  return out.finish();
}

class CopyWriter {
  private bytes = Buffer.allocUnsafe(256 * 1024);
  private length = SIGNATURE.copy(this.bytes);

  row(types: readonly PostgresType[], row: readonly unknown[]): void {
    this.reserve(2);
    this.length = this.bytes.writeInt16BE(types.length, this.length);
    for (let i = 0; i < types.length; i += 1) this.value(types[i]!, row[i]);
  }

  finish(): Buffer {
    this.reserve(2);
    this.length = this.bytes.writeInt16BE(-1, this.length);
    return this.bytes.subarray(0, this.length);
  }

  private value(type: PostgresType, value: unknown): void {
    if (value === null) {
      this.reserve(4);
      this.length = this.bytes.writeInt32BE(-1, this.length);
    } else if (type === 'text') this.text(value as string);
    else if (type === 'bytea') this.blob(value as Buffer);
    else if (type === 'bigint') this.eight((at) => this.bytes.writeBigInt64BE(BigInt(value as bigint), at));
    else if (type === 'double precision') this.eight((at) => this.bytes.writeDoubleBE(value as number, at));
    else if (type === 'timestamptz') {
      this.eight((at) => this.bytes.writeBigInt64BE(microsOf(value as string) - EPOCH_MICROS, at));
    } else {
      this.reserve(5);
      this.length = this.bytes.writeInt32BE(1, this.length);
      this.length = this.bytes.writeInt8(value === true ? 1 : 0, this.length);
    }
  }

  private text(value: string): void {
    this.reserve(4 + value.length * 3);
    const written = this.bytes.write(value, this.length + 4, 'utf8');
    this.bytes.writeInt32BE(written, this.length);
    this.length += 4 + written;
  }

  private blob(value: Buffer): void {
    this.reserve(4 + value.length);
    this.bytes.writeInt32BE(value.length, this.length);
    this.length += 4 + value.copy(this.bytes, this.length + 4);
  }

  private eight(write: (at: number) => number): void {
    this.reserve(12);
    this.length = this.bytes.writeInt32BE(8, this.length);
    this.length = write(this.length);
  }

  private reserve(bytes: number): void {
    if (this.length + bytes <= this.bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.bytes.length * 2, this.length + bytes));
    this.bytes.copy(larger, 0, 0, this.length);
    this.bytes = larger;
  }
}

function microsOf(time: string): bigint {
  return BigInt(Date.parse(`${time.slice(0, 19)}Z`)) * 1000n + BigInt(time.slice(20, 26));
}
