import type { UnknownField } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import type {
  Action as WireAction,
  Content as WireContent,
  Observation as WireObservation,
  StepState as WireState,
  Step as WireStep,
  Tensor as WireTensor,
} from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { type Digest, digestMismatch, parseDigest, shorten } from '../../domain/ids.ts';
import type { Instant } from '../../domain/instant.ts';
import { LIMITS } from '../../domain/limits.ts';
import { stateDigest } from '../../domain/state_digest.ts';
import {
  type Action,
  type Content,
  DEFAULT_STATE_NAME,
  itemBytes,
  type NewState,
  type Observation,
  type StateRef,
  type Tensor,
  tensorBytes,
} from '../../domain/step.ts';
import {
  type NewSteps,
  type PackedStep,
  packStep,
  type SentStep,
  withInlineStates,
} from '../../domain/step_codec/packed_step.ts';
import { WireWriter } from '../../domain/step_codec/wire_writer.ts';
import { isStorableText, jsonFault, unstorableText } from '../../domain/text.ts';
import { compareText } from '../../domain/text_order.ts';
import { instantFault, toInstant, toMap } from '../convert/values.ts';

/**
 * Converts steps and states of requests. The rules of their protos were checked before (see `screenStep`); all other
 * checks happen here. Fields that the server sets are ignored. Errors: INVALID_REQUEST, DIGEST_MISMATCH.
 */

/** The position of a step in its request: its field, or its index in `steps`. Converted to text only for errors. */
type StepPosition = string | number;

/** An item of a list of a step. */
interface Within {
  readonly place: StepPosition;
  readonly list: string;
  readonly index: number;
}

const NONE: readonly never[] = [];

/** Returns the steps of a frame as they are stored. */
export function packSteps(steps: readonly WireStep[]): PackedStep[] {
  const out = new WireWriter(PACKED_BYTES);
  return steps.map((step, i) => packStep(out, toSentStep(step, i)));
}

/** Returns a step that stands alone in its request. */
export function toOneStep(step: WireStep, field: string): NewSteps {
  return withInlineStates([packStep(new WireWriter(PACKED_BYTES), toSentStep(step, field))]);
}

/** Most steps need less. */
const PACKED_BYTES = 4096;

/** Returns the reference to a state that stands alone in its request, and its bytes if it came with any. */
export function toOneState(state: WireState, field: string): { ref: StateRef; data: Uint8Array | undefined } {
  return { ref: toStateRef(state, field, '', undefined), data: state.data };
}

function toSentStep(step: WireStep, place: StepPosition): SentStep {
  refuseUnknown(step.$unknown, place, '');
  checkJson(step.infoJson, place, '.info_json');
  checkJson(step.metadataJson, place, '.metadata_json');
  const { actions, observations, states } = step;
  const contentData: NewState[] = [];
  return {
    stepNumber: step.stepNumber,
    actions: actions.length === 0 ? NONE : actions.map((action, i) => toAction(action, place, i, contentData)),
    observations:
      observations.length === 0 ? NONE : observations.map((each, i) => toObservation(each, place, i, contentData)),
    reward: step.reward,
    terminated: step.terminated,
    truncated: step.truncated,
    infoJson: step.infoJson,
    metadataJson: step.metadataJson,
    metrics: toMetrics(step.metrics, place),
    startTime: toTime(step.startTime, place, '.start_time'),
    endTime: toTime(step.endTime, place, '.end_time'),
    states: states.length === 0 ? NONE : toStates(states, place),
    labels: toLabels(step.labels, place),
    contentData,
  };
}

function toAction(action: WireAction, place: StepPosition, index: number, contentData: NewState[]): Action {
  refuseUnknown(action.$unknown, place, '.actions', index);
  const { type, name, callId, content, promptTokenIds, keptTokens, tokenIdsState, promptTokenIdsState } = action;
  checkText(type, place, '.actions', index, '.type');
  checkText(name, place, '.actions', index, '.name');
  checkText(callId, place, '.actions', index, '.call_id');
  return {
    type,
    name,
    callId,
    content: content === undefined ? undefined : toContent(content, place, '.actions', index, contentData),
    tokenIds: action.tokenIds,
    // JSON may have more digits than the float that is stored, and a repeated step must be equal to it.
    logprobs: action.logprobs.length === 0 ? NONE : action.logprobs.map(Math.fround),
    promptTokenIds,
    keptTokens,
    tokenIdsState: toDigest(tokenIdsState, place, index, '.token_ids_state'),
    promptTokenIdsState: toDigest(promptTokenIdsState, place, index, '.prompt_token_ids_state'),
  };
}

/** Returns the digest of an action's field, if it is set. */
function toDigest(digest: string | undefined, place: StepPosition, index: number, field: string): Digest | undefined {
  return digest === undefined ? undefined : parseDigest(digest, pathOf(place, '.actions', index, field));
}

function toObservation(
  observation: WireObservation,
  place: StepPosition,
  index: number,
  contentData: NewState[],
): Observation {
  refuseUnknown(observation.$unknown, place, '.observations', index);
  const { type, callId, isError, content } = observation;
  checkText(type, place, '.observations', index, '.type');
  checkText(callId, place, '.observations', index, '.call_id');
  return {
    type,
    callId,
    isError,
    content: content === undefined ? undefined : toContent(content, place, '.observations', index, contentData),
  };
}

/** Adds large data, which is stored as a state (FM4), to `contentData`. */
function toContent(
  content: WireContent,
  place: StepPosition,
  list: string,
  index: number,
  contentData: NewState[],
): Content {
  refuseUnknown(content.$unknown, place, list, index, '.content');
  const { text, json, tensor, mediaType } = content;
  if (text !== undefined) {
    refuseMediaType(mediaType, place, list, index);
    checkText(text, place, list, index, '.content.text');
    return { kind: 'text', text };
  }
  if (json !== undefined) {
    checkText(mediaType, place, list, index, '.content.media_type');
    const fault = jsonFault(json);
    if (fault !== undefined) throw invalidField(pathOf(place, list, index, '.content.json'), fault);
    return { kind: 'json', json, mediaType };
  }
  if (tensor !== undefined) {
    refuseMediaType(mediaType, place, list, index);
    return toTensor(tensor, { place, list, index }, contentData);
  }
  const { data, stateDigest: digest, uri = '' } = content;
  checkText(mediaType, place, list, index, '.content.media_type');
  if (data !== undefined) {
    if (data.length < LIMITS.contentStateBytes) return { kind: 'data', data, mediaType };
    const state = { digest: stateDigest(data), data };
    contentData.push(state);
    return { kind: 'state', digest: state.digest, mediaType, size: data.length };
  }
  if (digest !== undefined) {
    const field = pathOf(place, list, index, '.content.state_digest');
    return { kind: 'state', digest: parseDigest(digest, field), mediaType, size: 0 };
  }
  checkText(uri, place, list, index, '.content.uri');
  return { kind: 'uri', uri, mediaType };
}

/** Adds large data to `contentData`, as `toContent` does. */
function toTensor(tensor: WireTensor, { place, list, index }: Within, contentData: NewState[]): Tensor {
  refuseUnknown(tensor.$unknown, place, list, index, '.content.tensor');
  const { dtype, shape, data, stateDigest: sent } = tensor;
  const fieldOf = (name: string) => pathOf(place, list, index, `.content.tensor.${name}`);
  const ofItem = itemBytes(dtype);
  if (ofItem === undefined) throw invalidField(fieldOf('dtype'), unknownDtype(dtype));
  const bytes = tensorBytes(ofItem, shape);
  if (bytes > LIMITS.stateBytes) {
    throw invalidField(
      fieldOf('shape'),
      `must be that of a tensor of at most ${LIMITS.stateBytes} bytes, not ${bytes}`,
    );
  }
  const known = { kind: 'tensor', dtype, shape } as const;
  if (data === undefined) return { ...known, digest: parseDigest(sent ?? '', fieldOf('state_digest')) };
  if (data.length !== bytes) {
    const items = `${dtype} of shape [${shape.join(', ')}]`;
    throw invalidField(fieldOf('data'), `must have ${bytes} bytes for a tensor ${items}, not ${data.length}`);
  }
  if (bytes < LIMITS.contentStateBytes) return { ...known, data };
  const digest = stateDigest(data);
  contentData.push({ digest, data });
  return { ...known, digest };
}

function unknownDtype(dtype: string): string {
  return `must be a type of NumPy's array interface, with a byte order and one of the kinds b, i, u, f, c, S, U, M and m, for example "<f4", not "${shorten(dtype)}"`;
}

/** Rejects a media type of text or a tensor, because it would not be stored (FM5). */
function refuseMediaType(mediaType: string, place: StepPosition, list: string, index: number): void {
  if (mediaType === '') return;
  throw invalidField(
    pathOf(place, list, index, '.content.media_type'),
    `must be empty for text and tensor, not "${shorten(mediaType)}": send such content as data`,
  );
}

function toMetrics(entries: WireStep['metrics'], place: StepPosition): ReadonlyMap<string, number> {
  const metrics = toMap(entries);
  for (const key of metrics.keys()) if (!isStorableText(key)) throw unstorableText(pathOf(place, '.metrics'));
  return metrics;
}

function toLabels(entries: WireStep['labels'], place: StepPosition): ReadonlyMap<string, string> {
  const labels = toMap(entries);
  for (const [key, value] of labels) {
    if (!isStorableText(key) || !isStorableText(value)) throw unstorableText(pathOf(place, '.labels'));
  }
  return labels;
}

/** W9: returns the states in the order of their names. Requires unique names. */
function toStates(states: readonly WireState[], place: StepPosition): StateRef[] {
  const refs = states.map((state, i) => toStateRef(state, place, '.states', i));
  refs.sort((a, b) => compareText(a.name, b.name));
  for (let i = 1; i < refs.length; i += 1) {
    if (refs[i]!.name !== refs[i - 1]!.name) continue;
    throw invalidField(
      pathOf(place, '.states'),
      `must have different names, but two are named "${refs[i]!.name}" (an empty name means "${DEFAULT_STATE_NAME}")`,
    );
  }
  return refs;
}

function toStateRef(state: WireState, place: StepPosition, list: string, index: number | undefined): StateRef {
  refuseUnknown(state.$unknown, place, list, index);
  const { data, mediaType } = state;
  const name = state.name === '' ? DEFAULT_STATE_NAME : state.name;
  checkText(name, place, list, index, '.name');
  checkText(mediaType, place, list, index, '.media_type');
  const digest = state.digest === '' ? '' : parseDigest(state.digest, pathOf(place, list, index, '.digest'));
  if (data === undefined) {
    const wanted = 'must have data, or the digest of a stored state';
    if (digest === '') throw invalidField(pathOf(place, list, index), wanted);
    // The size of a state put before is the store's to tell.
    return { name, digest, mediaType, size: 0, data };
  }
  const found = stateDigest(data);
  if (digest !== '' && digest !== found) throw digestMismatch(digest, found);
  return { name, digest: found, mediaType, size: data.length, data };
}

function toTime(time: Timestamp | undefined, place: StepPosition, field: string): Instant | undefined {
  if (time === undefined) return undefined;
  refuseUnknown(time.$unknown, place, field);
  const fault = instantFault(time);
  if (fault !== undefined) throw invalidField(pathOf(place, field), fault);
  return toInstant(time);
}

/** FM5: rejects unknown fields, which would not be stored. */
function refuseUnknown(
  unknown: readonly UnknownField[] | undefined,
  place: StepPosition,
  list: string,
  index?: number,
  field = '',
): void {
  if (unknown === undefined || unknown.length === 0) return;
  const numbers = unknown.map(({ no }) => no).join(', ');
  throw invalidField(
    pathOf(place, list, index, field),
    `must have only fields that this server knows, not the numbers ${numbers}: use the protos of this server's version`,
  );
}

function checkJson(text: string, place: StepPosition, field: string): void {
  if (text === '') return;
  const fault = jsonFault(text);
  if (fault !== undefined) throw invalidField(pathOf(place, field), fault);
}

function checkText(text: string, place: StepPosition, list: string, index: number | undefined, field: string): void {
  if (text !== '' && !isStorableText(text)) throw unstorableText(pathOf(place, list, index, field));
}

function pathOf(place: StepPosition, list: string, index?: number, field = ''): string {
  const step = typeof place === 'number' ? `steps[${place}]` : place;
  return `${step}${list}${index === undefined ? '' : `[${index}]`}${field}`;
}
