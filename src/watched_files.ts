import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';

export interface FileEvents {
  /** Called for the first contents, and for each that replaces them. Throws an error that says what is wrong. */
  use(contents: readonly Buffer[]): void;
  /** Called once for contents that cannot be used. Those before stay in use. */
  refuse(reason: string): void;
}

/**
 * Files that belong together, read again every `everyMs`: mounted secrets are replaced by changing links above them,
 * which no watch of the files would notice.
 */
export class WatchedFiles {
  readonly #files: readonly string[];
  readonly #everyMs: number;
  readonly #events: FileEvents;
  #used: string | undefined;
  /** Why the files could not be used at the last look, and whether this was reported. */
  #fault: string | undefined;
  #reported = false;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;

  constructor(files: readonly string[], everyMs: number, events: FileEvents) {
    this.#files = files;
    this.#everyMs = everyMs;
    this.#events = events;
  }

  /** Reads the files, and watches them from then on. Throws an error that says what is wrong with them. */
  async open(): Promise<void> {
    await this.#load();
    this.#schedule();
  }

  /** Looks at the files now. What is wrong is reported at once. Never rejects. */
  async reload(): Promise<void> {
    try {
      await this.#load();
    } catch (error) {
      const { message } = error as Error;
      this.#fault = message;
      this.#reported = true;
      this.#events.refuse(message);
    }
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  #schedule(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => void this.#look().then(() => this.#schedule()), this.#everyMs).unref();
  }

  async #look(): Promise<void> {
    try {
      await this.#load();
      this.#fault = undefined;
    } catch (error) {
      const { message } = error as Error;
      // Several files are not replaced at once: only what is wrong twice in a row is reported.
      if (message !== this.#fault) this.#reported = false;
      else if (!this.#reported) {
        this.#reported = true;
        this.#events.refuse(message);
      }
      this.#fault = message;
    }
  }

  async #load(): Promise<void> {
    const contents = await Promise.all(this.#files.map(read));
    const digest = createHash('sha256');
    for (const content of contents) digest.update(`${content.length}\0`).update(content);
    const used = digest.digest('base64');
    if (this.#stopped || used === this.#used) return;
    this.#events.use(contents);
    this.#used = used;
  }
}

async function read(file: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (error) {
    throw new Error(`${file} cannot be read (${(error as NodeJS.ErrnoException).code}).`, { cause: error });
  }
}
