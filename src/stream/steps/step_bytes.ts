import type { Content, Step } from '../../domain/step.ts';

/** Returns an upper bound of the encoded size of a step, without the data of its states (RD3). */
export function stepBytes(step: Step): number {
  let bytes = 256 + utf8(step.infoJson) + utf8(step.metadataJson);
  for (const action of step.actions) {
    const { type, name, callId, content, tokenIds, logprobs, promptTokenIds } = action;
    bytes += 64 + utf8(type) + utf8(name) + utf8(callId) + contentBytes(content);
    bytes += (tokenIds.length + promptTokenIds.length) * 10 + logprobs.length * 4; // a negative int32 takes ten bytes
    for (const digest of [action.tokenIdsState, action.promptTokenIdsState]) if (digest !== undefined) bytes += 66;
  }
  for (const { type, callId, content } of step.observations) {
    bytes += 64 + utf8(type) + utf8(callId) + contentBytes(content);
  }
  for (const key of step.metrics.keys()) bytes += 24 + utf8(key);
  for (const [key, value] of step.labels) bytes += 24 + utf8(key) + utf8(value);
  for (const { name, mediaType } of step.states) bytes += 144 + utf8(name) + utf8(mediaType);
  return bytes;
}

function contentBytes(content: Content | undefined): number {
  switch (content?.kind) {
    case undefined:
      return 0;
    case 'text':
      return 16 + utf8(content.text);
    case 'json':
      return 16 + utf8(content.json);
    case 'data':
      return 32 + content.data.length + utf8(content.mediaType);
    case 'state':
      return 144 + utf8(content.mediaType);
    case 'uri':
      return 32 + utf8(content.uri) + utf8(content.mediaType);
    case 'tensor':
      return 128 + content.shape.length * 5 + (content.data?.length ?? 0);
  }
}

function utf8(text: string): number {
  return Buffer.byteLength(text);
}
