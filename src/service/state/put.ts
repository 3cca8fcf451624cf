import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { digestMismatch, parseDigest } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { StateInfo, StateUpload } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';

export interface PutStateArgs {
  /** Digest in the first frame. Optional; empty means unset. */
  readonly digest: string | undefined;
  /** Digest of a state with many equal bytes. Optional; empty means unset. */
  readonly baseDigest?: string;
  /** Pieces of any size. Each is requested when the previous one was written, which bounds the memory. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

/**
 * Stores a state (S4), and resolves when it is durable. Errors: DIGEST_MISMATCH, INVALID_REQUEST (over 256 MiB),
 * STORAGE_FULL, SERVER_DRAINING.
 */
export async function putState(app: App, caller: Caller, args: PutStateArgs): Promise<StateInfo> {
  const stated = args.digest === undefined || args.digest === '' ? undefined : parseDigest(args.digest, 'digest');
  const base = args.baseDigest ? parseDigest(args.baseDigest, 'base_digest') : undefined;
  const upload = app.store.putState(caller.namespace, base);
  try {
    await write(app, upload, args.chunks);
    if (stated !== undefined && stated !== upload.digest()) throw digestMismatch(stated, upload.digest());
    return await upload.finish();
  } catch (error) {
    await abortQuietly(app, upload);
    throw error;
  }
}

/** A2: an upload that waits for its client does not delay a shutdown. Errors: SERVER_DRAINING, INVALID_REQUEST. */
async function write({ drain }: App, upload: StateUpload, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const iterator = chunks[Symbol.asyncIterator]();
  for (let size = 0; ; ) {
    const next = await drain.race(iterator.next());
    if (next.done === true) return;
    size += next.value.length;
    if (size > LIMITS.stateBytes) throw invalidField('chunk', `a state must have at most ${LIMITS.stateBytes} bytes`);
    await upload.write(next.value);
  }
}

/** Never throws, so that the caller receives the error of the upload. Maintenance removes what remains. */
async function abortQuietly(app: App, upload: StateUpload): Promise<void> {
  try {
    await upload.abort();
  } catch (error) {
    app.logger.warn({ err: error }, 'the data of a failed upload could not be removed now; maintenance will remove it');
  }
}
