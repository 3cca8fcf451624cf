import { LIMITS } from './limits.ts';
import {
  type Action,
  type Content,
  itemBytes,
  type Observation,
  type StateRef,
  type Step,
  type Tensor,
  tensorBytes,
} from './step.ts';
import { fitsBytes, isStorableText, jsonFault } from './text.ts';

const DIGEST = /^[0-9a-f]{64}$/;

/**
 * Returns why no client can have sent a decoded step. Undefined if nothing is wrong. Requests of steps are checked
 * before they are decoded, or by the rules of their protos; this checks steps from elsewhere.
 */
export function stepFault(step: Step): string | undefined {
  const { stepNumber, actions, observations, infoJson, metadataJson, metrics, labels, states } = step;
  if (stepNumber < 0n) return 'its number is negative';
  if (actions.length > LIMITS.stepParts || observations.length > LIMITS.stepParts)
    return 'it has too many actions or observations';
  if (!isJson(infoJson) || !isJson(metadataJson)) return 'its JSON texts are not strict JSON';
  if (metrics.size > LIMITS.metrics || !every(metrics.keys(), (key) => isText(key, LIMITS.metricKeyBytes, 1)))
    return 'it has too many metrics, or a wrong key of a metric';
  const isLabel = ([key, value]: readonly [string, string]) =>
    isText(key, LIMITS.labelKeyBytes, 1) && isText(value, LIMITS.labelValueBytes);
  if (labels.size > LIMITS.stepLabels || !every(labels, isLabel)) return 'it has too many labels, or a wrong one';
  if (!actions.every(isAction)) return 'an action has a value that no request can have';
  if (!observations.every(isObservation)) return 'an observation has a value that no request can have';
  return statesFault(states);
}

/** Returns why a step cannot have these states. */
function statesFault(states: readonly StateRef[]): string | undefined {
  if (states.length > LIMITS.statesPerStep) return 'it has too many states';
  if (new Set(states.map(({ name }) => name)).size < states.length) return 'two states have the same name';
  return states.every(isState) ? undefined : 'a state has a name, digest, size or media type that no request can have';
}

function isState({ name, digest, mediaType, size }: StateRef): boolean {
  const isSize = Number.isInteger(size) && size >= 0 && size <= LIMITS.stateBytes;
  return (
    isText(name, LIMITS.stateNameBytes, 1) && DIGEST.test(digest) && isText(mediaType, LIMITS.mediaTypeBytes) && isSize
  );
}

function isAction(action: Action): boolean {
  const { type, name, callId, content, tokenIds, promptTokenIds, tokenIdsState, promptTokenIdsState } = action;
  return (
    isText(type, LIMITS.typeBytes) &&
    isText(name, LIMITS.actionNameBytes) &&
    isText(callId, LIMITS.callIdBytes) &&
    isContent(content) &&
    areTokens(tokenIds, tokenIdsState) &&
    areTokens(promptTokenIds, promptTokenIdsState)
  );
}

function areTokens(tokens: readonly number[], digest: string | undefined): boolean {
  return digest === undefined || (DIGEST.test(digest) && tokens.length === 0);
}

function isObservation({ type, callId, content }: Observation): boolean {
  return isText(type, LIMITS.typeBytes) && isText(callId, LIMITS.callIdBytes) && isContent(content);
}

function isContent(content: Content | undefined): boolean {
  switch (content?.kind) {
    case undefined:
      return true;
    case 'text':
      return isStorableText(content.text);
    case 'json':
      return jsonFault(content.json) === undefined && isText(content.mediaType, LIMITS.mediaTypeBytes);
    case 'data':
      return content.data.length < LIMITS.contentStateBytes && isText(content.mediaType, LIMITS.mediaTypeBytes);
    case 'uri':
      return isText(content.uri, LIMITS.uriBytes) && isText(content.mediaType, LIMITS.mediaTypeBytes);
    case 'state':
      return DIGEST.test(content.digest) && isText(content.mediaType, LIMITS.mediaTypeBytes);
    case 'tensor':
      return isTensor(content);
  }
}

function isTensor({ dtype, shape, data, digest }: Tensor): boolean {
  const ofItem = itemBytes(dtype);
  if (ofItem === undefined || shape.length > LIMITS.tensorDimensions || !shape.every((length) => length >= 0))
    return false;
  const bytes = tensorBytes(ofItem, shape);
  if (bytes > LIMITS.stateBytes) return false;
  if (data === undefined) return DIGEST.test(digest);
  return data.length === bytes && bytes < LIMITS.contentStateBytes;
}

function isJson(text: string): boolean {
  return text === '' || jsonFault(text) === undefined;
}

function isText(text: string, most: number, least = 0): boolean {
  return text.length >= least && fitsBytes(text, most) && isStorableText(text);
}

function every<T>(items: Iterable<T>, holds: (item: T) => boolean): boolean {
  for (const item of items) if (!holds(item)) return false;
  return true;
}
