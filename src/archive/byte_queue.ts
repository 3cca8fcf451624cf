/** Takes any number of bytes from chunks of any size. Keeps the chunk that the next bytes are in. */
export class ByteQueue {
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
