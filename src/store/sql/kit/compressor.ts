import { constants, createZstdCompress, type ZstdCompress } from 'node:zlib';
import { LEVEL } from './zstd.ts';

/** As many as Node has threads for such work. */
const STREAMS = 4;

/** Rows are smaller once they are compressed. A full piece needs a second task for the threads. */
const PIECE_BYTES = 256 * 1024;

/**
 * Compresses rows on other threads with few streams, which are kept: to create a context and its tables for each row
 * costs as much as compressing it.
 */
export class Compressor {
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
