import type { Caller } from '../../domain/caller.ts';
import type { StateRef } from '../../domain/step.ts';
import type { App } from '../app.ts';
import type { UnaryWriteArgs } from './append_step.ts';

export interface AttachStateArgs extends UnaryWriteArgs {
  readonly stepNumber: bigint;
  /** The reference, and the bytes if they came with it. */
  readonly state: { readonly ref: StateRef; readonly data: Uint8Array | undefined };
}

/** W10. Errors: TRAJECTORY_NOT_FOUND, WRITER_FENCED, STEP_NOT_FOUND, STATE_NOT_FOUND, STATE_CONFLICT, DIGEST_MISMATCH. */
export async function attachState(
  app: App,
  caller: Caller,
  args: AttachStateArgs,
): Promise<{ readonly state: StateRef; readonly duplicate: boolean }> {
  const { ref, data } = args.state;
  return app.store.attachState(caller, {
    trajectoryId: args.trajectoryId,
    uid: args.uid,
    writerEpoch: args.writerEpoch,
    stepNumber: args.stepNumber,
    name: ref.name,
    digest: ref.digest,
    mediaType: ref.mediaType,
    data,
  });
}
