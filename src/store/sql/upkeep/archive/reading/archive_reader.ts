import { Worker } from 'node:worker_threads';
import { archiveInvalid, type CheckedPart } from '../../../../../domain/archive.ts';
import { AnabranchError } from '../../../../../domain/errors.ts';

/** `.ts` in a checkout, `.js` in the package. */
const PROGRAM = new URL(`./archive_thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

/** Bounds the memory of the objects of a thread. Its buffers are bounded by what one entry may have. */
const RESOURCE_LIMITS = { maxOldGenerationSizeMb: 48, maxYoungGenerationSizeMb: 8 };

/**
 * Reads the bytes of an archive on a thread of its own, one part ahead: hostile bytes can take the time and the memory
 * of that thread, but not those of the serving one. Errors: ARCHIVE_INVALID, and those of the chunks.
 */
export async function* readOnThread(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<CheckedPart, void, undefined> {
  const thread = new ReadingThread(chunks);
  try {
    let next = thread.nextPart();
    for (;;) {
      const part = await next;
      if (part === undefined) return;
      next = thread.nextPart();
      // The next iteration reports it.
      next.catch(() => {});
      yield part;
    }
  } finally {
    await thread.end();
  }
}

class ReadingThread {
  readonly #source: AsyncIterator<Uint8Array>;
  readonly #worker = new Worker(PROGRAM, { name: 'anabranch import', resourceLimits: RESOURCE_LIMITS });
  /** The part that is asked for. Undefined: the archive has ended. */
  #part = Promise.withResolvers<CheckedPart | undefined>();
  /** Set once no further part can follow. */
  #failure: Promise<never> | undefined;

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#source = chunks[Symbol.asyncIterator]();
    this.#worker.on('message', (reply: Reply) => this.#receive(reply));
    this.#worker.on('error', (error) => this.#fail(isOutOfMemory(error) ? tooLarge(error) : error));
    this.#worker.on('exit', () => this.#fail(new Error('the thread of the import has ended')));
  }

  /** Must not be called before the part before it has arrived. */
  nextPart(): Promise<CheckedPart | undefined> {
    if (this.#failure !== undefined) return this.#failure;
    this.#part = Promise.withResolvers();
    this.#send({ kind: 'part wanted' });
    return this.#part.promise;
  }

  async end(): Promise<void> {
    this.#part.promise.catch(() => {});
    await this.#worker.terminate();
    // Not awaited: the client may never send the chunk that is waited for.
    this.#source.return?.(undefined).catch(() => {});
  }

  #receive(reply: Reply): void {
    if (reply.kind === 'chunk wanted') void this.#feed();
    else if (reply.kind === 'part') this.#part.resolve(reply.part);
    else if (reply.kind === 'end') this.#part.resolve(undefined);
    else this.#fail(new AnabranchError('ARCHIVE_INVALID', reply.message, { metadata: { place: reply.place } }));
  }

  async #feed(): Promise<void> {
    try {
      const next = await this.#source.next();
      // A copy, because the chunk may be a view of a larger message.
      this.#send({ kind: 'chunk', chunk: next.done === true ? undefined : new Uint8Array(next.value) });
    } catch (error) {
      this.#fail(error);
    }
  }

  #send(request: Request): void {
    const chunk = request.kind === 'chunk' ? request.chunk : undefined;
    this.#worker.postMessage(request, chunk === undefined ? [] : [chunk.buffer as ArrayBuffer]);
  }

  #fail(error: unknown): void {
    if (this.#failure !== undefined) return;
    this.#failure = Promise.reject(error);
    this.#failure.catch(() => {});
    this.#part.reject(error);
    this.#part.promise.catch(() => {});
  }
}

function isOutOfMemory(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_WORKER_OUT_OF_MEMORY';
}

function tooLarge(cause: unknown): AnabranchError {
  return archiveInvalid('an entry', 'it takes more memory than an import may use', cause);
}

/** What the thread that reads an archive is sent. Without a chunk, the archive has ended. */
export type Request =
  | { readonly kind: 'part wanted' }
  | { readonly kind: 'chunk'; readonly chunk: Uint8Array | undefined };

/** What it sends: parts that were asked for, and its own requests for chunks. */
export type Reply =
  | { readonly kind: 'chunk wanted' }
  | { readonly kind: 'part'; readonly part: CheckedPart }
  | { readonly kind: 'end' }
  | { readonly kind: 'refused'; readonly message: string; readonly place: string };
