import { invalidField } from '../../domain/errors.ts';
import { type Digest, digestMismatch, parseDigest } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import { stateDigest } from '../../domain/state_digest.ts';
import type { Action, Content, NewState, NewStep, Observation, StateRef, Step } from '../../domain/step.ts';
import { stepDigest } from '../../domain/step_digest.ts';
import { fitsBytes, isStorableText, jsonFault, unstorableText } from '../../domain/text.ts';
import { compareText } from '../../domain/text_order.ts';

/** A state as it came in with a step: its bytes, or the digest of one put before, or both (then they must match). */
export interface IncomingState {
  /** Empty means `env`. */
  readonly name: string;
  /** Empty bytes are a state, absent ones are not. */
  readonly data: Uint8Array | undefined;
  /** Empty if not stated. */
  readonly digest: string;
  readonly mediaType: string;
}

/** A step as it came in. Content data may be of any size, and a content's `size` is not looked at. */
export interface IncomingStep extends Omit<Step, 'states'> {
  readonly states: readonly IncomingState[];
}

/** Steps ready to be stored, and the bytes of the states that came inline with them, each digest once. */
export interface PreparedSteps {
  readonly steps: readonly NewStep[];
  readonly states: readonly NewState[];
}

const NO_STATES: readonly StateRef[] = [];
export const DEFAULT_STATE_NAME = 'env';

/** All of a frame's steps, or the first fault found, with the path of its field (`steps[3].actions[0].content.text`). */
export function prepareSteps(incoming: readonly IncomingStep[], field: string): PreparedSteps {
  const inline = new InlineStates();
  const steps: NewStep[] = [];
  for (let i = 0; i < incoming.length; i += 1) {
    const step = incoming[i]!;
    // A frame of one step is the commonest, and then the path costs nothing until something is wrong.
    steps.push(prepare(step, { field, index: i }, inline));
  }
  return { steps, states: inline.list() };
}

/** One step that stands alone in its request. */
export function prepareStep(incoming: IncomingStep, field: string): PreparedSteps {
  const inline = new InlineStates();
  const step = prepare(incoming, { field, index: undefined }, inline);
  return { steps: [step], states: inline.list() };
}

/** A state that stands alone in its request: its reference, and its bytes if it came with any. */
export function prepareState(state: IncomingState, field: string): { ref: StateRef; data: Uint8Array | undefined } {
  return { ref: stateRef(state, field, new InlineStates()), data: state.data };
}

function metricsFault(metrics: ReadonlyMap<string, number>): string | undefined {
  if (metrics.size > LIMITS.metrics) return `must hold at most ${LIMITS.metrics} entries, not ${metrics.size}`;
  for (const key of metrics.keys()) {
    if (key === '' || !fitsBytes(key, LIMITS.metricKeyBytes) || !isStorableText(key)) {
      return `keys must have 1 to ${LIMITS.metricKeyBytes} bytes, without U+0000 and without lone surrogates`;
    }
  }
  return undefined;
}

/** Where a step stands in its request; made into text only when something is wrong with it. */
interface Place {
  readonly field: string;
  readonly index: number | undefined;
}

/** Bytes that came inline, each digest once. */
class InlineStates {
  private seen: Map<Digest, NewState> | undefined;

  add(data: Uint8Array): Digest {
    const digest = stateDigest(data);
    this.seen ??= new Map();
    if (!this.seen.has(digest)) this.seen.set(digest, { digest, data });
    return digest;
  }

  list(): readonly NewState[] {
    return this.seen === undefined ? [] : [...this.seen.values()];
  }
}

function prepare(step: IncomingStep, place: Place, inline: InlineStates): NewStep {
  if (step.stepNumber < 0n)
    throw invalidField(path(place, 'step_number'), `must be at least 0, not ${step.stepNumber}`);
  checkJson(step.infoJson, place, 'info_json');
  checkJson(step.metadataJson, place, 'metadata_json');
  if (step.metrics.size > 0) {
    const fault = metricsFault(step.metrics);
    if (fault !== undefined) throw invalidField(path(place, 'metrics'), fault);
  }
  const ready: Mutable<NewStep> = {
    stepNumber: step.stepNumber,
    actions: prepareActions(step.actions, place, inline),
    observations: prepareObservations(step.observations, place, inline),
    reward: step.reward,
    terminated: step.terminated,
    truncated: step.truncated,
    infoJson: step.infoJson,
    metadataJson: step.metadataJson,
    metrics: step.metrics,
    startTime: step.startTime,
    endTime: step.endTime,
    states: step.states.length === 0 ? NO_STATES : prepareStates(step.states, place, inline),
    contentDigest: '',
  };
  ready.contentDigest = stepDigest(ready);
  return ready;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

function prepareActions(actions: readonly Action[], place: Place, inline: InlineStates): readonly Action[] {
  let changed: Action[] | undefined;
  for (let i = 0; i < actions.length; i += 1) {
    const action = actions[i]!;
    checkText(action.type, place, 'actions', i, 'type');
    checkText(action.name, place, 'actions', i, 'name');
    checkText(action.callId, place, 'actions', i, 'call_id');
    const content = prepareContent(action.content, place, 'actions', i, inline);
    if (content !== action.content) {
      changed ??= [...actions];
      changed[i] = { ...action, content };
    }
  }
  return changed ?? actions;
}

function prepareObservations(
  observations: readonly Observation[],
  place: Place,
  inline: InlineStates,
): readonly Observation[] {
  let changed: Observation[] | undefined;
  for (let i = 0; i < observations.length; i += 1) {
    const observation = observations[i]!;
    checkText(observation.type, place, 'observations', i, 'type');
    checkText(observation.callId, place, 'observations', i, 'call_id');
    const content = prepareContent(observation.content, place, 'observations', i, inline);
    if (content !== observation.content) {
      changed ??= [...observations];
      changed[i] = { ...observation, content };
    }
  }
  return changed ?? observations;
}

type ListName = 'actions' | 'observations';

/** The content itself where it can be kept as it is; large data becomes a state (FM4). */
function prepareContent(
  content: Content | undefined,
  place: Place,
  list: ListName,
  index: number,
  inline: InlineStates,
): Content | undefined {
  switch (content?.kind) {
    case undefined:
      return content;
    case 'text':
      checkText(content.text, place, list, index, 'content.text');
      return content;
    case 'json': {
      const fault = jsonFault(content.json);
      if (fault !== undefined) throw invalidField(path(place, `${list}[${index}].content.json`), fault);
      return content;
    }
    case 'uri':
      checkText(content.uri, place, list, index, 'content.uri');
      break;
    case 'state':
      parseDigest(content.digest, path(place, `${list}[${index}].content.state_digest`));
      break;
    case 'data':
  }
  checkText(content.mediaType, place, list, index, 'content.media_type');
  if (content.kind !== 'data' || content.data.length < LIMITS.contentStateBytes) return content;
  const { data, mediaType } = content;
  return { kind: 'state', digest: inline.add(data), mediaType, size: data.length };
}

/** W9: named, each name once, sorted by name. */
function prepareStates(states: readonly IncomingState[], place: Place, inline: InlineStates): StateRef[] {
  if (states.length > LIMITS.statesPerStep) {
    throw invalidField(path(place, 'states'), `must be at most ${LIMITS.statesPerStep}, not ${states.length}`);
  }
  const refs = states.map((state, i) => stateRef(state, path(place, `states[${i}]`), inline));
  refs.sort((a, b) => compareText(a.name, b.name));
  for (let i = 1; i < refs.length; i += 1) {
    if (refs[i]!.name !== refs[i - 1]!.name) continue;
    throw invalidField(
      path(place, 'states'),
      `must have different names, but two are named "${refs[i]!.name}" (an empty name means "${DEFAULT_STATE_NAME}")`,
    );
  }
  return refs;
}

function stateRef(state: IncomingState, field: string, inline: InlineStates): StateRef {
  const name = state.name === '' ? DEFAULT_STATE_NAME : state.name;
  if (!isStorableText(name)) throw unstorableText(`${field}.name`);
  if (!fitsBytes(name, LIMITS.stateNameBytes)) {
    throw invalidField(`${field}.name`, `must have at most ${LIMITS.stateNameBytes} bytes`);
  }
  if (!isStorableText(state.mediaType)) throw unstorableText(`${field}.media_type`);
  const { data, mediaType } = state;
  if (data === undefined) {
    if (state.digest === '') throw invalidField(field, 'must have data, or the digest of a state put before');
    // The size of a state put before is the store's to tell.
    return { name, digest: parseDigest(state.digest, `${field}.digest`), mediaType, size: 0 };
  }
  if (data.length > LIMITS.inlineStateBytes) {
    throw invalidField(
      `${field}.data`,
      `must have at most ${LIMITS.inlineStateBytes} bytes, not ${data.length}: put larger states (PutState) and send their digest`,
    );
  }
  if (state.digest !== '') parseDigest(state.digest, `${field}.digest`);
  const digest = inline.add(data);
  if (state.digest !== '' && state.digest !== digest) throw digestMismatch(state.digest, digest);
  return { name, digest, mediaType, size: data.length };
}

function checkJson(text: string, place: Place, field: string): void {
  if (text === '') return;
  const fault = jsonFault(text);
  if (fault !== undefined) throw invalidField(path(place, field), fault);
}

function checkText(text: string, place: Place, list: ListName, index: number, field: string): void {
  if (text !== '' && !isStorableText(text)) throw unstorableText(path(place, `${list}[${index}].${field}`));
}

function path(place: Place, field: string): string {
  return place.index === undefined ? `${place.field}.${field}` : `${place.field}[${place.index}].${field}`;
}
