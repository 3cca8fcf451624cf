import type { Action, Content, Step, Tensor } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import { isMediaType } from '../../domain/text.ts';

/** Result of `screenStep` for a step that the full validator must check. */
export const SUSPECT = -1;

/**
 * Checks a step quickly: returns an upper bound of its encoded size if it satisfies all rules of the proto, or SUSPECT
 * if the validator must decide. The validator takes ten times as long. A test proves that no step passes here that the
 * validator rejects.
 */
export function screenStep(step: Step): number {
  const { actions, observations, states } = step;
  if (step.stepNumber < 0n || actions.length > LIMITS.stepParts || observations.length > LIMITS.stepParts)
    return SUSPECT;
  if (states.length > LIMITS.statesPerStep) return SUSPECT;
  let bytes = 128 + 3 * (step.infoJson.length + step.metadataJson.length);
  for (let i = 0; i < actions.length; i += 1) {
    const { type, name, callId, content, tokenIds, logprobs } = actions[i]!;
    const tokensBytes = screenTokens(actions[i]!);
    if (tokensBytes === SUSPECT) return SUSPECT;
    if (!fits(type, LIMITS.typeBytes) || !fits(name, LIMITS.actionNameBytes) || !fits(callId, LIMITS.callIdBytes))
      return SUSPECT;
    const contentBytes = screenContent(content);
    if (contentBytes === SUSPECT) return SUSPECT;
    bytes += 40 + 3 * (type.length + name.length + callId.length) + contentBytes;
    bytes += 10 * tokenIds.length + 4 * logprobs.length + tokensBytes;
  }
  for (let i = 0; i < observations.length; i += 1) {
    const { type, callId, content } = observations[i]!;
    if (!fits(type, LIMITS.typeBytes) || !fits(callId, LIMITS.callIdBytes)) return SUSPECT;
    const contentBytes = screenContent(content);
    if (contentBytes === SUSPECT) return SUSPECT;
    bytes += 20 + 3 * (type.length + callId.length) + contentBytes;
  }
  for (let i = 0; i < states.length; i += 1) {
    const { name, data, digest, mediaType } = states[i]!;
    if (!fits(name, LIMITS.stateNameBytes) || !fits(digest, 64) || !fitsMediaType(mediaType)) return SUSPECT;
    if (data !== undefined && data.length > LIMITS.inlineStateBytes) return SUSPECT;
    bytes += 40 + 3 * (name.length + digest.length + mediaType.length) + (data?.length ?? 0);
  }
  let metrics = 0;
  for (const key in step.metrics) {
    if (key === '' || !fits(key, LIMITS.metricKeyBytes)) return SUSPECT;
    metrics += 1;
    bytes += 20 + 3 * key.length;
  }
  let labels = 0;
  for (const key in step.labels) {
    const value = step.labels[key]!;
    if (key === '' || !fits(key, LIMITS.labelKeyBytes) || !fits(value, LIMITS.labelValueBytes)) return SUSPECT;
    labels += 1;
    bytes += 20 + 3 * (key.length + value.length);
  }
  return metrics > LIMITS.metrics || labels > LIMITS.stepLabels ? SUSPECT : bytes;
}

/** Returns an upper bound of the encoded size of the fields behind `logprobs`. */
function screenTokens(action: Action): number {
  const { tokenIds, promptTokenIds, keptTokens = 0, tokenIdsState, promptTokenIdsState } = action;
  if (keptTokens < 0) return SUSPECT;
  if (tokenIdsState !== undefined && (tokenIds.length > 0 || !isDigestLong(tokenIdsState))) return SUSPECT;
  if (promptTokenIdsState !== undefined && (promptTokenIds.length > 0 || !isDigestLong(promptTokenIdsState)))
    return SUSPECT;
  return 20 + 10 * promptTokenIds.length + 4 * ((tokenIdsState?.length ?? 0) + (promptTokenIdsState?.length ?? 0));
}

function screenContent(content: Content | undefined): number {
  if (content === undefined) return 0;
  const { text, json, data, stateDigest, uri, tensor, mediaType } = content;
  let set = 0;
  let bytes = 40 + 3 * mediaType.length;
  if (text !== undefined) {
    set += 1;
    bytes += 3 * text.length;
  }
  if (json !== undefined) {
    set += 1;
    bytes += 3 * json.length;
  }
  if (data !== undefined) {
    set += 1;
    bytes += data.length;
  }
  if (stateDigest !== undefined) {
    set += 1;
    if (!isDigestLong(stateDigest)) return SUSPECT;
    bytes += 4 * DIGEST_LENGTH;
  }
  if (uri !== undefined) {
    set += 1;
    if (!fits(uri, LIMITS.uriBytes)) return SUSPECT;
    bytes += 3 * uri.length;
  }
  if (tensor !== undefined) {
    set += 1;
    const tensorBytes = screenTensor(tensor);
    if (tensorBytes === SUSPECT) return SUSPECT;
    bytes += tensorBytes;
  }
  return set === 1 && fitsMediaType(mediaType) ? bytes : SUSPECT;
}

function screenTensor({ dtype, shape, data, stateDigest }: Tensor): number {
  if (!fits(dtype, LIMITS.dtypeBytes) || shape.length > LIMITS.tensorDimensions || shape.some((length) => length < 0))
    return SUSPECT;
  const bytes = 40 + 3 * dtype.length + 5 * shape.length;
  if (stateDigest === undefined) return data === undefined ? SUSPECT : bytes + data.length;
  return data === undefined && isDigestLong(stateDigest) ? bytes + 4 * DIGEST_LENGTH : SUSPECT;
}

const DIGEST_LENGTH = 64;

/** The rule of the proto counts code points, which have up to four bytes. */
function isDigestLong(digest: string): boolean {
  return [...digest].length === DIGEST_LENGTH;
}

function fitsMediaType(text: string): boolean {
  return text.length <= LIMITS.mediaTypeBytes && isMediaType(text);
}

/** Whether a text has at most `bytes` bytes in UTF-8. Counts them only if its length does not decide. */
function fits(text: string, bytes: number): boolean {
  return text.length * 3 <= bytes || (text.length <= bytes && Buffer.byteLength(text) <= bytes);
}
