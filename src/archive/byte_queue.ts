/** Takes any number of bytes from chunks of any size. Keeps the chunks that the next bytes are in. */
export class ByteQueue {
  readonly #chunks: AsyncIterator<Buffer>;
  #queued: Buffer[] = [];
  #bytes = 0;

  constructor(chunks: AsyncIterable<Buffer>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Returns a copy of the next bytes. Undefined if there are fewer. */
  async take(count: number): Promise<Buffer | undefined> {
    while (this.#bytes < count) {
      const next = await this.#chunks.next();
      if (next.done === true) return undefined;
      this.#queued.push(next.value);
      this.#bytes += next.value.length;
    }
    const taken = Buffer.allocUnsafeSlow(count);
    let at = 0;
    while (at < count) {
      const first = this.#queued[0]!;
      const used = first.copy(taken, at, 0, Math.min(first.length, count - at));
      at += used;
      if (used === first.length) this.#queued.shift();
      else this.#queued[0] = first.subarray(used);
    }
    this.#bytes -= count;
    return taken;
  }

  /** Reads the rest, so that its end is checked too. */
  async drain(): Promise<void> {
    this.#queued = [];
    this.#bytes = 0;
    while ((await this.#chunks.next()).done !== true);
  }
}
