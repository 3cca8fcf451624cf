import { errorMetadata, reasonOf } from '../errors.ts';

/** The state of the writer when a stream ends with an error. */
interface Situation {
  readonly writerId: string;
  readonly everOpened: boolean;
  readonly takeOver: boolean;
  /** True if other steps may have shared a frame with the rejected one. */
  readonly shared: boolean;
}

export type Verdict =
  /** Open again with this epoch: another writer holds the trajectory, and this one has written nothing yet. */
  | { readonly do: 'takeOver'; readonly epoch: bigint }
  /** Open again: an older stream of this writer arrived late and fenced the newer one. */
  | { readonly do: 'reopen' }
  /** Open again and send one step per frame, so that a rejection concerns only one step. */
  | { readonly do: 'isolate' }
  /** Retry transient errors. All other errors are permanent. */
  | { readonly do: 'retryOrFail' };

/** Errors that are caused by the content of one step. */
const SINGLE_STEP_REASONS = new Set([
  'INVALID_REQUEST',
  'STEP_CONFLICT',
  'STATE_NOT_FOUND',
  'DIGEST_MISMATCH',
  'MESSAGE_TOO_LARGE',
]);

/** Decides how to continue after an error (rule W12). */
export function judge(error: unknown, situation: Situation): Verdict {
  const reason = reasonOf(error);
  if (reason === 'WRITER_FENCED') return judgeFence(errorMetadata(error), situation);
  if (reason !== undefined && SINGLE_STEP_REASONS.has(reason) && situation.everOpened && situation.shared) {
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
