import { constants, createZstdCompress, type ZstdCompress, type ZstdOptions, zstdDecompressSync } from 'node:zlib';

/** Smallest piece of output that Node accepts. */
const MIN_PIECE_BYTES = 64;

/** Level 1 finds almost nothing in a dictionary; levels above 3 take far longer and save little. */
export const LEVEL = { [constants.ZSTD_c_compressionLevel]: 3 };

/** Covers an inline state and its dictionary. */
const WITH_DICTIONARY = { ...LEVEL, [constants.ZSTD_c_windowLog]: 21 };

/** Each piece of output is another task for the threads. Most deltas are smaller than this. */
const DELTA_PIECE_BYTES = 4096;

/** Compresses a state on another thread. The dictionary must be passed to `decompress` too. */
export function compressState(data: Uint8Array, dictionary?: Uint8Array): Promise<Uint8Array> {
  const options: ZstdOptions = {
    // With the size, zstd makes smaller tables, and stores it: then readers need no window.
    pledgedSrcSize: data.length,
    // The frame ends with the first write. `zstdCompress` ends it with a second task for the threads.
    flush: constants.ZSTD_e_end,
    ...(dictionary === undefined
      ? { params: LEVEL, chunkSize: Math.max(DELTA_PIECE_BYTES, data.length >> 1) }
      : { params: WITH_DICTIONARY, chunkSize: DELTA_PIECE_BYTES, dictionary }),
  };
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    const stream = createZstdCompress(options);
    stream.on('data', (piece: Buffer) => pieces.push(piece)).on('error', reject);
    stream.write(data, (error) => {
      if (error) return;
      resolve(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces));
      stream.destroy();
    });
  });
}

/** Throws if the bytes are damaged or become more than `maxBytes`. */
export function decompress(packed: Uint8Array, maxBytes: number, dictionary?: Uint8Array): Uint8Array {
  const maxOutputLength = Math.max(maxBytes, MIN_PIECE_BYTES);
  // All output is one piece: smaller ones take five times as long. A full piece would be followed by an empty one.
  const options = { maxOutputLength, chunkSize: maxOutputLength + 1 };
  const bytes = zstdDecompressSync(packed, dictionary === undefined ? options : { ...options, dictionary });
  // Node's stream refers to the bytes until a full collection of the heap, so it loses them.
  const { length } = bytes;
  const memory = ownMemory(bytes);
  return memory === undefined ? bytes : Buffer.from(memory.transfer(), 0, length);
}

/**
 * Frees bytes that `decompress` returned and that nothing uses any more, without waiting for a collection: each delta
 * of a chain is decoded into new bytes. Does nothing to bytes that share their memory with others.
 */
export function free(bytes: Uint8Array): void {
  ownMemory(bytes)?.transfer(0);
}

/** Returns the memory of bytes that share it with no others. */
function ownMemory({ buffer, byteOffset, length }: Uint8Array): ArrayBuffer | undefined {
  const isAlone = byteOffset === 0 && buffer.byteLength <= length + 1;
  return isAlone && buffer instanceof ArrayBuffer ? buffer : undefined;
}

/** As many as Node has threads for such work. */
const STREAMS = 4;

/** Segments are smaller once they are compressed. A full piece needs a second task for the threads. */
const PIECE_BYTES = 256 * 1024;

/**
 * Compresses segments on other threads with few streams, which are kept: to create a context and its tables for each
 * costs as much as compressing it.
 */
export class SegmentCompressor {
  readonly #idle: KeptStream[] = [];
  readonly #waiting: ((stream: KeptStream) => void)[] = [];
  #streams = 0;

  /** `data` must not be empty, and must not change meanwhile. */
  async compress(data: Uint8Array): Promise<Uint8Array> {
    let stream = await this.#take();
    try {
      return await stream.compress(data);
    } catch (error) {
      stream = new KeptStream();
      throw error;
    } finally {
      this.#giveBack(stream);
    }
  }

  #take(): KeptStream | Promise<KeptStream> {
    const idle = this.#idle.pop();
    if (idle !== undefined) return idle;
    if (this.#streams === STREAMS) return new Promise((resolve) => this.#waiting.push(resolve));
    this.#streams += 1;
    return new KeptStream();
  }

  #giveBack(stream: KeptStream): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#idle.push(stream);
    else next(stream);
  }
}

/** Compresses one piece of data at a time, each into a frame of its own with its size. */
class KeptStream {
  readonly #stream: ZstdCompress;
  #pieces: Buffer[] = [];
  #fail: (error: unknown) => void = () => {};

  constructor() {
    this.#stream = createZstdCompress({ params: LEVEL, flush: constants.ZSTD_e_end, chunkSize: PIECE_BYTES });
    this.#stream.on('data', (piece: Buffer) => this.#pieces.push(piece)).on('error', (error) => this.#fail(error));
  }

  compress(data: Uint8Array): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.#fail = reject;
      this.#stream.write(data, (error) => {
        if (error) return;
        const pieces = this.#pieces;
        this.#pieces = [];
        resolve(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces));
      });
    });
  }
}
