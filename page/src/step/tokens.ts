import type { Action } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/** Tokens that are shown. */
export const MOST_TOKENS = 2000;

/**
 * Type of a last action whose tensor has the log-probabilities of the first one. The Python client writes it if they
 * exceed a step.
 */
const LOGPROBS_TYPE = 'anabranch.logprobs';

/** An action, and where its tokens are. */
export interface ActionTokens {
  readonly action: Action;
  /** Digest of the state that has the log-probabilities. Empty if the action has them, or has none. */
  readonly logprobsState: string;
}

/** Returns the actions that a person should see: log-probabilities that are stored as an action belong to the first. */
export function withTokens(actions: readonly Action[]): ActionTokens[] {
  const last = actions.at(-1);
  const moved = actions.length > 1 && last?.type === LOGPROBS_TYPE ? last.content?.tensor?.stateDigest : undefined;
  const shown = moved === undefined ? actions : actions.slice(0, -1);
  return shown.map((action, at) => ({ action, logprobsState: at === 0 ? (moved ?? '') : '' }));
}

/** The first tokens of an action. */
export interface Tokens {
  readonly ids: readonly number[];
  readonly logprobs: readonly number[];
  /** Number of all tokens. */
  readonly count: number;
}

/** Reads the first bytes of a state. */
type ReadState = (digest: string, bytes: number) => Promise<{ readonly data: DataView; readonly size: number }>;

/** Reads the first tokens of an action, wherever they are stored. */
export async function readTokens({ action, logprobsState }: ActionTokens, read: ReadState): Promise<Tokens> {
  const [ids, logprobs] = await Promise.all([
    action.tokenIdsState === undefined ? undefined : read(action.tokenIdsState, 4 * MOST_TOKENS),
    logprobsState === '' ? undefined : read(logprobsState, 4 * MOST_TOKENS),
  ]);
  return {
    ids: ids === undefined ? action.tokenIds.slice(0, MOST_TOKENS) : numbersOf(ids.data, 'getInt32'),
    logprobs: logprobs === undefined ? action.logprobs.slice(0, MOST_TOKENS) : numbersOf(logprobs.data, 'getFloat32'),
    count: ids === undefined ? action.tokenIds.length : ids.size / 4,
  };
}

/** Tensors of the dtypes `<i4` and `<f4`. */
function numbersOf(data: DataView, get: 'getInt32' | 'getFloat32'): number[] {
  return Array.from({ length: Math.floor(data.byteLength / 4) }, (_, at) => data[get](4 * at, true));
}
