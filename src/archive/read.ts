import { isUtf8 } from 'node:buffer';
import { hash } from 'node:crypto';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createZstdDecompress } from 'node:zlib';
import { type ArchivePart, archiveInvalid } from '../domain/archive.ts';
import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { BLOCK, readHeader, readSmallStates, type TarEntry } from './entries.ts';

/** 8 MiB: four times the window of what exports write. A larger one would take the reader's memory. */
const PARAMS = { [constants.ZSTD_d_windowLogMax]: 23 };

/** Bytes that zstd returns at once. It decompresses one such chunk ahead, on its own thread. */
const CHUNK_BYTES = 256 * 1024;

const MIB = 1024 * 1024;

/** Bytes of an entry of each kind that is read as a whole. Exports write smaller ones. */
const MOST_BYTES = { records: LIMITS.archiveRecordBytes + MIB, small_states: 8 * MIB, steps: 4 * MIB } as const;

/** Zeros after the last entry. */
const MOST_ZEROS = MIB;

/** Bytes of a piece of a state. */
const PIECE_BYTES = 256 * 1024;

const RECORDS = /^records\/[0-9]{8,}\.([0-9a-f]{64})\.jsonl$/;
const STEPS = /^steps\/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\/(0|[1-9][0-9]{0,18})\.([0-9a-f]{64})\.binpb$/;
const SMALL_STATES = /^small_states\/([0-9a-f]{64})\.binpb$/;
const STATE = /^states\/([0-9a-f]{64})$/;

/**
 * Returns the parts of an archive while its bytes arrive. Keeps one part in memory, and writes no file: names of
 * entries are only compared with those that exports write. Errors: ARCHIVE_INVALID, and those of the chunks.
 */
export async function* readArchive(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<ArchivePart, void, undefined> {
  const zstd = createZstdDecompress({ params: PARAMS, chunkSize: CHUNK_BYTES });
  let failure: unknown;
  let receivedBytes = 0;
  async function* counted() {
    for await (const chunk of chunks) {
      receivedBytes += chunk.length;
      yield chunk;
    }
  }
  const received = pipeline(Readable.from(counted(), { objectMode: true }), zstd).catch((error: unknown) => {
    failure = error;
  });
  try {
    yield* readTar(new ByteQueue(zstd as AsyncIterable<Buffer>));
    await received;
    // zlib ignores what follows the last frame.
    const left = receivedBytes - zstd.bytesWritten;
    if (left > 0) throw archiveInvalid('its end', `${left} bytes that are no zstd follow`);
  } catch (error) {
    if (error instanceof AnabranchError) throw error;
    await received;
    throw isDecoding(failure ?? error)
      ? archiveInvalid('its bytes', 'they are no zstd, or are cut off', error)
      : (failure ?? error);
  } finally {
    zstd.destroy();
    await received;
  }
}

/** Errors of zlib have a code and a number. Others come from where the chunks come from. */
function isDecoding(error: unknown): boolean {
  const { code } = error as { readonly code?: unknown };
  return typeof code === 'string' && /^(ZSTD_|Z_|ERR_ZLIB|ERR_STREAM_PREMATURE)/.test(code);
}

async function* readTar(input: ByteQueue): AsyncGenerator<ArchivePart, void, undefined> {
  for (let last = 'the beginning'; ; ) {
    const header = await input.take(BLOCK);
    const entry = header === undefined ? { fault: 'the archive is cut off' } : readHeader(header);
    if (entry === 'end') {
      if (await input.drain(MOST_ZEROS)) return;
      throw archiveInvalid(`the end after ${last}`, 'more follows than zeros');
    }
    if ('fault' in entry) throw archiveInvalid(`the entry after ${last}`, entry.fault);
    yield* readEntry(entry, input);
    const padding = (BLOCK - (entry.size % BLOCK)) % BLOCK;
    if (padding > 0) await whole(input, entry.name, padding);
    last = entry.name;
  }
}

async function* readEntry({ name, size }: TarEntry, input: ByteQueue): AsyncGenerator<ArchivePart, void, undefined> {
  const state = STATE.exec(name);
  if (state !== null) {
    // The receiver of a piece may transfer its memory.
    for (let offset = 0; offset < size || offset === 0; offset += PIECE_BYTES) {
      const bytes = await whole(input, name, Math.min(size - offset, PIECE_BYTES));
      yield { kind: 'state', digest: state[1]!, size, offset, bytes };
    }
    return;
  }
  const [records, small, steps] = [RECORDS.exec(name), SMALL_STATES.exec(name), STEPS.exec(name)];
  const digest = records?.[1] ?? small?.[1] ?? steps?.[3];
  if (digest === undefined) throw archiveInvalid(`the entry ${JSON.stringify(name)}`, 'no entry has such a name');
  const most = MOST_BYTES[records !== null ? 'records' : small !== null ? 'small_states' : 'steps'];
  if (size > most) throw archiveInvalid(name, `it has ${size} bytes, and at most ${most} are allowed`);
  if (size === 0) throw archiveInvalid(name, 'it is empty');
  const bytes = await whole(input, name, size);
  if (hash('sha256', bytes, 'hex') !== digest) throw archiveInvalid(name, 'its bytes have another digest');
  if (records !== null) yield { kind: 'records', text: textOf(name, bytes) };
  else if (small !== null) yield { kind: 'small_states', states: readSmallStates(name, bytes) };
  else yield { kind: 'steps', trajectoryId: steps![1]!, firstStepNumber: BigInt(steps![2]!), bytes };
}

function textOf(name: string, bytes: Buffer): string {
  if (!isUtf8(bytes)) throw archiveInvalid(name, 'it is no UTF-8');
  return bytes.toString('utf8');
}

async function whole(input: ByteQueue, name: string, size: number): Promise<Buffer> {
  const bytes = await input.take(size);
  if (bytes === undefined) throw archiveInvalid(name, 'it is cut off');
  return bytes;
}

/** Takes any number of bytes from chunks of any size. Keeps the chunk that the next bytes are in. */
class ByteQueue {
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Buffer>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Returns a copy of the next bytes. Undefined if there are fewer. */
  async take(count: number): Promise<Buffer | undefined> {
    const taken = Buffer.allocUnsafeSlow(count);
    for (let at = 0; at < count; ) {
      if (this.#rest.length === 0 && !(await this.#read())) return undefined;
      const used = this.#rest.copy(taken, at);
      at += used;
      this.#rest = this.#rest.subarray(used);
    }
    return taken;
  }

  /** Reads the rest, so that its end is checked too. Returns false once it has other bytes than zeros, or too many. */
  async drain(most: number): Promise<boolean> {
    for (let left = most; ; ) {
      left -= this.#rest.length;
      if (left < 0 || this.#rest.some((byte) => byte !== 0)) return false;
      this.#rest = this.#rest.subarray(this.#rest.length);
      if (!(await this.#read())) return true;
    }
  }

  async #read(): Promise<boolean> {
    const next = await this.#chunks.next();
    if (next.done !== true) this.#rest = next.value;
    return next.done !== true;
  }
}
