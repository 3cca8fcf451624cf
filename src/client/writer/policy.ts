import { errorMetadata, reasonOf } from '../errors.ts';

/** What the writer knows of itself when a stream ends with an error. */
export interface Situation {
  readonly writerId: string;
  readonly everOpened: boolean;
  readonly takeOver: boolean;
  /** Steps may have shared a frame with the refused one. */
  readonly shared: boolean;
}

export type Verdict =
  /** Open again naming this epoch: another writer holds the trajectory, and this one has not written yet. */
  | { readonly do: 'takeOver'; readonly epoch: bigint }
  /** Open again: an older stream of this same writer arrived late and fenced the newer one. */
  | { readonly do: 'reopen' }
  /** Open again and send one step a frame, so that the refusal hits the refused step alone. */
  | { readonly do: 'isolate' }
  /** Not the writer's own business: transient errors are retried, all others are final. */
  | { readonly do: 'retryOrFail' };

/** Refusals of one step for what is in it. */
const ABOUT_ONE_STEP = new Set([
  'INVALID_REQUEST',
  'STEP_CONFLICT',
  'STATE_NOT_FOUND',
  'DIGEST_MISMATCH',
  'MESSAGE_TOO_LARGE',
]);

/** Rule W12, as a pure function. */
export function judge(error: unknown, situation: Situation): Verdict {
  const reason = reasonOf(error);
  if (reason === 'WRITER_FENCED') return judgeFence(errorMetadata(error), situation);
  if (reason !== undefined && ABOUT_ONE_STEP.has(reason) && situation.everOpened && situation.shared) {
    return { do: 'isolate' };
  }
  return { do: 'retryOrFail' };
}

function judgeFence(metadata: Readonly<Record<string, string>>, situation: Situation): Verdict {
  if (metadata.writer_id === situation.writerId) return { do: 'reopen' };
  const epoch = metadata.writer_epoch ?? '';
  const mayTakeOver = situation.takeOver && !situation.everOpened && /^\d+$/.test(epoch);
  return mayTakeOver ? { do: 'takeOver', epoch: BigInt(epoch) } : { do: 'retryOrFail' };
}
