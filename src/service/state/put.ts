import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { digestMismatch, parseDigest } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { StateInfo, StateUpload } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';
import { serverDraining } from '../../stream/drain.ts';

export interface PutStateArgs {
  /** Digest that the first frame gives. Empty or undefined if it gives none. */
  readonly digest: string | undefined;
  /** The bytes, in pieces of any size; asked for one at a time, so that memory stays bounded. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

/**
 * S4: durable when this resolves. Errors: DIGEST_MISMATCH, INVALID_REQUEST (over 256 MiB), STORAGE_FULL,
 * SERVER_DRAINING.
 */
export async function putState(app: App, caller: Caller, args: PutStateArgs): Promise<StateInfo> {
  const stated = args.digest === undefined || args.digest === '' ? undefined : parseDigest(args.digest, 'digest');
  const upload = app.store.putState(caller.namespace);
  try {
    await write(upload, untilDrain(app, args.chunks));
    if (stated !== undefined && stated !== upload.digest()) throw digestMismatch(stated, upload.digest());
    return await upload.finish();
  } catch (error) {
    await abortQuietly(app, upload);
    throw error;
  }
}

/** A2: an upload that waits for its client does not hold up a shutdown; what came of it is collected later. */
async function* untilDrain(app: App, pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  const iterator = pieces[Symbol.asyncIterator]();
  let stopWaiting = () => {};
  const draining = new Promise<never>((_, reject) => {
    stopWaiting = app.drain.onBegin(() => reject(serverDraining()));
  });
  draining.catch(() => undefined); // thrown where it is raced; nobody races when all has come
  try {
    for (;;) {
      const next = await Promise.race([iterator.next(), draining]);
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    stopWaiting();
  }
}

async function write(upload: StateUpload, pieces: AsyncIterable<Uint8Array>): Promise<void> {
  let size = 0;
  for await (const piece of pieces) {
    size += piece.length;
    if (size > LIMITS.stateBytes) throw invalidField('chunk', `a state must have at most ${LIMITS.stateBytes} bytes`);
    await upload.write(piece);
  }
}

/**
 * What is left over is collected later in any case; the caller is told why the upload failed, not why its cleaning up
 * did.
 */
async function abortQuietly(app: App, upload: StateUpload): Promise<void> {
  try {
    await upload.abort();
  } catch (error) {
    app.logger.warn({ err: error }, 'the data of a failed upload could not be removed; maintenance will remove it');
  }
}
