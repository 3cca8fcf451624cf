import type { Upload } from '../step.ts';

/**
 * Uploads the bytes that steps refer to, before the steps. Uploads run one at a time, so that memory and connection
 * serve the steps first.
 */
export class Uploads {
  readonly #put: (upload: Upload) => Promise<void>;
  #last: Promise<void> = Promise.resolve();
  #bytes = 0;
  /** Digests of the last step with uploads, in order. Successive steps mostly have states of the same names. */
  #before: readonly string[] = [];

  constructor(put: (upload: Upload) => Promise<void>) {
    this.#put = put;
  }

  /** Number of bytes that are not uploaded yet. */
  get waitingBytes(): number {
    return this.#bytes;
  }

  /** Resolves when these uploads and all earlier ones are done. After one upload fails, all later ones fail. */
  add(uploads: readonly Upload[]): Promise<void> {
    for (const upload of uploads) this.#bytes += upload.bytes.byteLength;
    const before = this.#before;
    if (uploads.length > 0) this.#before = uploads.map(({ digest }) => digest);
    const putAll = async () => {
      for (const [i, upload] of uploads.entries()) {
        await this.#put({ ...upload, baseDigest: before[i] });
        this.#bytes -= upload.bytes.byteLength;
      }
    };
    this.#last = this.#last.then(putAll);
    return this.#last;
  }
}
