import type { UnknownField } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import type {
  Action as WireAction,
  Content as WireContent,
  Observation as WireObservation,
  StepState as WireState,
  Step as WireStep,
} from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { shorten } from '../../domain/ids.ts';
import type { Instant } from '../../domain/instant.ts';
import type { Action, Content, Observation } from '../../domain/step.ts';
import type { IncomingState, IncomingStep } from '../../stream/append/incoming.ts';
import { instantFault, toInstant, toMap } from '../convert/values.ts';

/**
 * A step as it came over the wire. Its rules hold already (see `screenStep`). `place` names it in errors: `root`, `step`, or its index in
 * `steps`. Fields that the server sets are not looked at. Errors: INVALID_REQUEST.
 */
export function toIncomingStep(step: WireStep, place: string | number): IncomingStep {
  refuseUnknown(step.$unknown, place, '');
  const { actions, observations, states, startTime, endTime } = step;
  return {
    stepNumber: step.stepNumber,
    actions: actions.length === 0 ? NONE : actions.map((action, i) => toAction(action, place, i)),
    observations: observations.length === 0 ? NONE : observations.map((each, i) => toObservation(each, place, i)),
    reward: step.reward,
    terminated: step.terminated,
    truncated: step.truncated,
    infoJson: step.infoJson,
    metadataJson: step.metadataJson,
    metrics: toMap(step.metrics),
    startTime: toTime(startTime, place, '.start_time'),
    endTime: toTime(endTime, place, '.end_time'),
    states: states.length === 0 ? NONE : states.map((state, i) => toIncomingState(state, place, '.states', i)),
  };
}

const NONE: readonly never[] = [];

function toAction(action: WireAction, place: string | number, index: number): Action {
  refuseUnknown(action.$unknown, place, '.actions', index);
  const { content } = action;
  return {
    type: action.type,
    name: action.name,
    callId: action.callId,
    content: content === undefined ? undefined : toContent(content, place, '.actions', index),
    tokenIds: action.tokenIds,
    logprobs: action.logprobs,
  };
}

function toObservation(observation: WireObservation, place: string | number, index: number): Observation {
  refuseUnknown(observation.$unknown, place, '.observations', index);
  const { content } = observation;
  return {
    type: observation.type,
    callId: observation.callId,
    isError: observation.isError,
    content: content === undefined ? undefined : toContent(content, place, '.observations', index),
  };
}

function toContent(content: WireContent, place: string | number, list: string, index: number): Content {
  refuseUnknown(content.$unknown, place, list, index, '.content');
  const { mediaType } = content;
  if (mediaType !== '' && (content.text !== undefined || content.json !== undefined)) {
    throw misplacedMediaType(mediaType, pathOf(place, `${list}[${index}].content.media_type`));
  }
  if (content.text !== undefined) return { kind: 'text', text: content.text };
  if (content.json !== undefined) return { kind: 'json', json: content.json };
  if (content.data !== undefined) return { kind: 'data', data: content.data, mediaType };
  if (content.stateDigest !== undefined) return { kind: 'state', digest: content.stateDigest, mediaType, size: 0 };
  return { kind: 'uri', uri: content.uri ?? '', mediaType };
}

/** Text and JSON say what they are, so nothing keeps this, and what is not kept is not taken (FM5). */
function misplacedMediaType(mediaType: string, path: string): Error {
  return invalidField(path, `must be empty for text and json, not "${shorten(mediaType)}": send such content as data`);
}

export function toIncomingState(state: WireState, place: string | number, list = '', index?: number): IncomingState {
  refuseUnknown(state.$unknown, place, list, index);
  return { name: state.name, data: state.data, digest: state.digest, mediaType: state.mediaType };
}

function toTime(time: Timestamp | undefined, place: string | number, tail: string): Instant | undefined {
  if (time === undefined) return undefined;
  refuseUnknown(time.$unknown, place, tail);
  const fault = instantFault(time);
  if (fault !== undefined) throw invalidField(pathOf(place, tail), fault);
  return toInstant(time);
}

/** FM5: an acked step loses nothing, so what this server does not know it does not take. */
function refuseUnknown(
  unknown: readonly UnknownField[] | undefined,
  place: string | number,
  list: string,
  index?: number,
  tail = '',
): void {
  if (unknown === undefined || unknown.length === 0) return;
  const path = pathOf(place, `${list}${index === undefined ? '' : `[${index}]`}${tail}`);
  const numbers = unknown.map(({ no }) => no).join(', ');
  throw invalidField(
    path,
    `has fields that this server does not know (numbers ${numbers}) and would lose: use the protos of this server's version`,
  );
}

function pathOf(place: string | number, tail: string): string {
  return `${typeof place === 'number' ? `steps[${place}]` : place}${tail}`;
}
