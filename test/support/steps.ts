import { createHash } from 'node:crypto';
import type { Digest } from '../../src/domain/ids.ts';
import type { Action, NewState, Observation, StateRef, Step } from '../../src/domain/step.ts';

/** The fields of an action without a prompt, whose own tokens are no state. */
export const NO_PROMPT = Object.freeze({
  promptTokenIds: [],
  keptTokens: undefined,
  tokenIdsState: undefined,
  promptTokenIdsState: undefined,
} satisfies Partial<Action>);

/** A step with only the given fields. */
export function makeStep(stepNumber: bigint, fields: Partial<Step> = {}): Step {
  return {
    stepNumber,
    actions: [],
    observations: [],
    reward: undefined,
    terminated: false,
    truncated: false,
    infoJson: '',
    metadataJson: '',
    metrics: new Map(),
    startTime: undefined,
    endTime: undefined,
    states: [],
    labels: new Map(),
    ...fields,
  };
}

/** A step that a word distinguishes from others of its number. */
export function wordStep(stepNumber: bigint, word: string, fields: Partial<Step> = {}): Step {
  return makeStep(stepNumber, { actions: [textAction(word)], ...fields });
}

export function textAction(text: string, fields: Partial<Action> = {}): Action {
  return {
    type: 'text',
    name: '',
    callId: '',
    content: { kind: 'text', text },
    tokenIds: [],
    logprobs: [],
    ...NO_PROMPT,
    ...fields,
  };
}

export function textObservation(text: string, fields: Partial<Observation> = {}): Observation {
  return { type: 'text', callId: '', isError: false, content: { kind: 'text', text }, ...fields };
}

export function sha256(bytes: Uint8Array | string): Digest {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The bytes of a state, ready to be sent inline. */
export function newState(data: Uint8Array | string): NewState {
  const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data;
  return { digest: sha256(bytes), data: bytes };
}

/** The reference of a step to a state. */
export function stateRef(state: NewState, name = 'env', mediaType = 'application/octet-stream'): StateRef {
  return { name, digest: state.digest, mediaType, size: state.data.length };
}

/** A small state of a new step, which is stored in the row of the step. */
export function smallRef(state: NewState, name = 'env', mediaType = 'application/octet-stream'): StateRef {
  return { ...stateRef(state, name, mediaType), data: state.data };
}
