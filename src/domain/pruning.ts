import type { Digest } from './ids.ts';
import { type Instant, instantFromParts, instantToParts } from './instant.ts';
import { LIMITS } from './limits.ts';
import {
  type AttachedState,
  type Content,
  contentStates,
  isAttached,
  isKept,
  type StateRef,
  type Step,
} from './step.ts';
import { compareText } from './text_order.ts';

/** S13: what retention removes from an own step of a trajectory. */
export interface StepPruning {
  readonly stepNumber: bigint;
  /** Names of states of the step. */
  readonly names: readonly string[];
  /** Contents with these media types lose their states. */
  readonly mediaTypes: readonly string[];
}

/** A mark makes a step a few bytes longer. A larger step keeps its states, so that it still fits into a message. */
export const PRUNABLE_STEP_BYTES = LIMITS.messageBytes - 64 * 1024;

/** All marks have the same length: `mayHaveMarks` looks for what it begins with. */
export function timeOfMark(now: Instant): Instant {
  const { seconds } = instantToParts(now);
  const bounded = [seconds, LEAST_SECOND].reduce((a, b) => (a > b ? a : b));
  return instantFromParts(bounded < LAST_SECOND ? bounded : LAST_SECOND, 0);
}

/** Whether all marks of a step are as `timeOfMark` makes them. */
export function hasValidMarks({ actions, observations, states }: Step): boolean {
  const isValid = ({ prunedTime }: { readonly prunedTime?: Instant | undefined }) =>
    prunedTime === undefined || timeOfMark(prunedTime) === prunedTime;
  const contents = [...actions, ...observations].flatMap(({ content }) => (content?.kind === 'state' ? [content] : []));
  return contents.every(isValid) && states.every(isValid);
}

/** The varints of the seconds from 1978 to 3058 have five bytes. */
const LEAST_SECOND = 2n ** 28n;
const LAST_SECOND = 2n ** 35n - 1n;

const STATE_MARK = Buffer.from([0x32, 0x06, 0x08]);
const CONTENT_MARK = Buffer.from([0x4a, 0x06, 0x08]);

/** Whether the encoding of a step may have marks. A step without marks may look as if it had some. */
export function mayHaveMarks(encoded: Buffer): boolean {
  return encoded.includes(STATE_MARK) || encoded.includes(CONTENT_MARK);
}

/** What an attach time begins with, by its length: its microseconds take no bytes, or three to six. */
const ATTACH_TIMES = [6, 9, 10, 11, 12].map((length) => Buffer.from([0x3a, length, 0x08]));

/** Whether the encoding of a step may have attached states. A step without them may look as if it had some. */
export function mayHaveAttached(encoded: Buffer): boolean {
  return ATTACH_TIMES.some((begin) => encoded.includes(begin));
}

/** Returns the step without what is pruned, of which names and digests stay. */
export function markPruned(step: Step, { names, mediaTypes }: StepPruning, prunedTime: Instant): Step {
  const content = (found: Content | undefined) => {
    return found?.kind === 'state' && isKept(found) && mediaTypes.includes(found.mediaType)
      ? { ...found, prunedTime }
      : found;
  };
  return withContents(step, content, (state) =>
    isKept(state) && names.includes(state.name) ? { ...state, prunedTime } : state,
  );
}

/** Returns the step as the client sent it. */
export function asSent(step: Step): Step {
  const content = (found: Content | undefined) =>
    found?.kind === 'state' ? { ...found, prunedTime: undefined } : found;
  return withContents(withoutAttached(step), content, (state) => ({ ...state, prunedTime: undefined }));
}

/** Returns the step without the states that were attached to it. */
export function withoutAttached(step: Step): Step {
  return { ...step, states: step.states.filter((state) => !isAttached(state)) };
}

function withContents(
  step: Step,
  ofContent: (content: Content | undefined) => Content | undefined,
  ofState: (state: StateRef) => StateRef,
): Step {
  return {
    ...step,
    actions: step.actions.map((action) => ({ ...action, content: ofContent(action.content) })),
    observations: step.observations.map((each) => ({ ...each, content: ofContent(each.content) })),
    states: step.states.map(ofState),
  };
}

/** Returns the states that the contents of a step referred to before it was marked, and do not refer to any more. */
export function releasedContents(before: Step, after: Step): readonly Digest[] {
  const kept = new Set(contentStates(after));
  return contentStates(before).filter((digest) => !kept.has(digest));
}

/** Returns the states of a step by name. One that was attached again replaces the pruned one of its name (W10). */
export function withAttached<State extends StateRef>(states: readonly State[], attached: readonly State[]): State[] {
  const others = states.filter((state) => isKept(state) || attached.every(({ name }) => name !== state.name));
  return [...others, ...attached].sort((a, b) => compareText(a.name, b.name));
}

/**
 * Whether a merge writes an attached state into its step, which has these states. Not if it replaces a pruned state
 * that was sent, because that one has to stay.
 */
export function canFold(states: readonly StateRef[], { name, attachTime }: AttachedState): boolean {
  const { seconds } = instantToParts(attachTime);
  if (seconds < LEAST_SECOND || seconds > LAST_SECOND) return false;
  return states.every((state) => state.name !== name || isAttached(state));
}
