import type { Digest } from './ids.ts';
import type { Instant } from './instant.ts';
import { LIMITS } from './limits.ts';

/**
 * The content of an action or observation, in one of six forms. `data` has less than 16 KiB; larger bytes are stored as
 * a state (FM4).
 */
export type Content =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'json'; readonly json: string; readonly mediaType: string }
  | { readonly kind: 'data'; readonly data: Uint8Array; readonly mediaType: string }
  | ContentState
  | { readonly kind: 'uri'; readonly uri: string; readonly mediaType: string }
  | Tensor;

/** Bytes that a state has. */
interface ContentState {
  readonly kind: 'state';
  readonly digest: Digest;
  readonly mediaType: string;
  readonly size: number;
  /** As in `StateRef`. */
  readonly prunedTime?: Instant | undefined;
}

/** An array. Its items are here, or a state has them. */
export type Tensor = {
  readonly kind: 'tensor';
  /** As in NumPy's array interface (`itemBytes` below). */
  readonly dtype: string;
  readonly shape: readonly number[];
} & (
  | { readonly data: Uint8Array; readonly digest?: undefined }
  | { readonly digest: Digest; readonly data?: undefined }
);

export interface Action {
  readonly type: string;
  readonly name: string;
  readonly callId: string;
  readonly content: Content | undefined;
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly promptTokenIds: readonly number[];
  /** Unset differs from 0. */
  readonly keptTokens: number | undefined;
  /** States that have the token ids. Then the list is empty. */
  readonly tokenIdsState: Digest | undefined;
  readonly promptTokenIdsState: Digest | undefined;
}

export interface Observation {
  readonly type: string;
  readonly callId: string;
  readonly isError: boolean;
  readonly content: Content | undefined;
}

/** A named state of a step. The media type belongs to this reference (S1). */
export interface StateRef {
  readonly name: string;
  readonly digest: Digest;
  readonly mediaType: string;
  readonly size: number;
  /**
   * The bytes of a state that came inline, or of a small state that is read with them. Unset in steps that are read.
   */
  readonly data?: Uint8Array | undefined;
  /** S13: when retention removed the state from its step, in whole seconds. Unset: the state is stored. */
  readonly prunedTime?: Instant | undefined;
  /** W10: when the state was attached or restored. Unset: it came with the step. */
  readonly attachTime?: Instant | undefined;
}

/** S13: whether a state of a step, or of its contents, can still be read. */
export function isKept({ prunedTime }: { readonly prunedTime?: Instant | undefined }): boolean {
  return prunedTime === undefined;
}

/** A state that was attached to a stored step (W10). */
export interface AttachedState extends StateRef {
  readonly attachTime: Instant;
}

/** W10: whether a state of a stored step was attached to it. */
export function isAttached(state: StateRef): state is AttachedState {
  return state.attachTime !== undefined;
}

/** The content of one step. Empty `infoJson` and `metadataJson` mean absent. */
export interface Step {
  readonly stepNumber: bigint;
  readonly actions: readonly Action[];
  readonly observations: readonly Observation[];
  /** Unset differs from 0, and NaN is kept (W11). */
  readonly reward: number | undefined;
  readonly terminated: boolean;
  readonly truncated: boolean;
  readonly infoJson: string;
  readonly metadataJson: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  /** Sorted by name. */
  readonly states: readonly StateRef[];
  readonly labels: ReadonlyMap<string, string>;
}

/** A stored step. */
export interface StoredStep extends Step {
  readonly commitTime: Instant;
  readonly writerEpoch: bigint;
  /** Sum of rewards from step 0 to this step along the lineage, added in order. Unset and NaN rewards are skipped. */
  readonly rewardSum: number;
}

/** The bytes of an inline state that becomes a row of its own. Its digest has been checked. */
export interface NewState {
  readonly digest: Digest;
  readonly data: Uint8Array;
}

/** The state that a reader restored last, of at most 512 KiB. The reader begins with an empty one. */
export interface RestoredState {
  digest?: Digest;
  data?: Uint8Array;
}

/** The name of a state that is given none. */
export const DEFAULT_STATE_NAME = 'env';

/**
 * Returns the digests of the states that a step's contents and actions refer to, in order, each once, without pruned
 * ones.
 */
export function contentStates(step: Step): readonly Digest[] {
  let found: Set<Digest> | undefined;
  const add = (digest: Digest | undefined) => {
    if (digest !== undefined) found = (found ?? new Set()).add(digest);
  };
  for (const { content, tokenIdsState, promptTokenIdsState } of step.actions) {
    add(contentDigest(content));
    add(tokenIdsState);
    add(promptTokenIdsState);
  }
  for (const { content } of step.observations) add(contentDigest(content));
  return found === undefined ? NO_DIGESTS : [...found];
}

function contentDigest(content: Content | undefined): Digest | undefined {
  if (content?.kind === 'state') return isKept(content) ? content.digest : undefined;
  return content?.kind === 'tensor' ? content.digest : undefined;
}

/** A state that has the items of a tensor, and the bytes that these have by dtype and shape. */
export interface TensorState {
  readonly digest: Digest;
  readonly bytes: number;
}

/** Returns the states that have the items of a step's tensors, in order. */
export function tensorStates({ actions, observations }: Step): readonly TensorState[] {
  let found: TensorState[] | undefined;
  for (const { content } of [...actions, ...observations]) {
    if (content?.kind !== 'tensor' || content.digest === undefined) continue;
    const { digest, dtype, shape } = content;
    found ??= [];
    found.push({ digest, bytes: tensorBytes(itemBytes(dtype) ?? 0, shape) });
  }
  return found ?? NO_TENSORS;
}

const NO_TENSORS: readonly TensorState[] = [];

/** S1: whether a state of a new step is stored in the row of its step. All others have rows of their own. */
export function isSmall<State extends Pick<StateRef, 'data'>>(
  state: State,
): state is State & { readonly data: Uint8Array } {
  return state.data !== undefined && state.data.length < LIMITS.smallStateBytes;
}

/** S1, S13: whether a state of a new or imported step has a row of its own. */
export function hasRow(state: Pick<StateRef, 'data' | 'prunedTime'>): boolean {
  return !isSmall(state) && isKept(state);
}

const NO_DIGESTS: readonly Digest[] = [];

/** Adds the reward of one more step. NaN and unset rewards are skipped (M3). */
export function addReward(sum: number, reward: number | undefined): number {
  return reward === undefined || Number.isNaN(reward) ? sum : sum + reward;
}

/** Like `addReward`, for own steps of a trajectory. Undefined while none of them has a reward that counts. */
export function addOwnReward(sum: number | undefined, reward: number | undefined): number | undefined {
  return reward === undefined || Number.isNaN(reward) ? sum : addReward(sum ?? 0, reward);
}

/**
 * Types of the items of tensors, as NumPy's array interface writes them: byte order, kind, and bytes per item; for U,
 * characters of four bytes. Times (M and m) may have a unit. Objects and records are left out: their bytes have no
 * meaning for others.
 */
const DTYPE =
  /^(?:\|b1|\|[iu]1|[<>][iu][248]|[<>]f(?:2|4|8|16)|[<>]c(?:8|16|32)|(?:\|S|[<>]U)(?:0|[1-9]\d{0,6})|[<>][mM]8(?:\[(?:[1-9]\d{0,7})?(?:[YMWDhms]|[munpfa]s)\])?)$/u;

/** Returns the bytes of one item. Undefined: tensors cannot have the type. */
export function itemBytes(dtype: string): number | undefined {
  if (!DTYPE.test(dtype)) return undefined;
  const size = Number.parseInt(dtype.slice(2), 10);
  return dtype[1] === 'U' ? 4 * size : size;
}

/** Returns the bytes of all items. The dimensions must not be negative; large products are not exact. */
export function tensorBytes(bytesOfItem: number, shape: readonly number[]): number {
  return shape.reduce((bytes, length) => bytes * length, bytesOfItem);
}
