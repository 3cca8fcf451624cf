import type { Upload } from '../step.ts';

/** Puts the bytes that steps name, before the steps: one after the other, so that memory and connection serve the steps first. */
export class Uploads {
  readonly #put: (upload: Upload) => Promise<void>;
  #last: Promise<void> = Promise.resolve();
  #bytes = 0;

  constructor(put: (upload: Upload) => Promise<void>) {
    this.#put = put;
  }

  /** How many bytes still wait. */
  get waitingBytes(): number {
    return this.#bytes;
  }

  /** Resolves when all these are put, after all that were added before. Once one has failed, so does everything behind it. */
  add(uploads: readonly Upload[]): Promise<void> {
    for (const upload of uploads) this.#bytes += upload.bytes.byteLength;
    const putAll = async () => {
      for (const upload of uploads) {
        await this.#put(upload);
        this.#bytes -= upload.bytes.byteLength;
      }
    };
    this.#last = this.#last.then(putAll);
    return this.#last;
  }
}
