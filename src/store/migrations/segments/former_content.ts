import { type Action, type Content, NO_PROMPT, type Observation } from '../../../domain/step.ts';

/**
 * JSON of actions and observations in the former table `steps`: a readable array. Absent fields are omitted, and bytes
 * are base64. Token ids (int32) and log-probabilities (float32) are packed little-endian and base64-encoded, a quarter
 * of their size as JSON numbers.
 */
export interface ActionJson {
  type?: string;
  name?: string;
  call_id?: string;
  content?: ContentJson;
  token_ids_i32?: string;
  logprobs_f32?: string;
}

export interface ObservationJson {
  type?: string;
  call_id?: string;
  is_error?: true;
  content?: ContentJson;
}

export interface ContentJson {
  text?: string;
  json?: string;
  data?: string;
  state?: string;
  size?: number;
  uri?: string;
  media_type?: string;
}

export function readActions(text: string): Action[] {
  if (text === '[]') return [];
  return (JSON.parse(text) as ActionJson[]).map((json) => ({
    type: json.type ?? '',
    name: json.name ?? '',
    callId: json.call_id ?? '',
    content: json.content === undefined ? undefined : contentFromJson(json.content),
    tokenIds: json.token_ids_i32 === undefined ? [] : Array.from(new Int32Array(unpack(json.token_ids_i32))),
    ...NO_PROMPT,
    logprobs: json.logprobs_f32 === undefined ? [] : Array.from(new Float32Array(unpack(json.logprobs_f32))),
  }));
}

export function readObservations(text: string): Observation[] {
  if (text === '[]') return [];
  return (JSON.parse(text) as ObservationJson[]).map((json) => ({
    type: json.type ?? '',
    callId: json.call_id ?? '',
    isError: json.is_error === true,
    content: json.content === undefined ? undefined : contentFromJson(json.content),
  }));
}

function contentFromJson(json: ContentJson): Content {
  const mediaType = json.media_type ?? '';
  if (json.text !== undefined) return { kind: 'text', text: json.text };
  if (json.json !== undefined) return { kind: 'json', json: json.json };
  if (json.data !== undefined)
    return { kind: 'data', data: new Uint8Array(Buffer.from(json.data, 'base64')), mediaType };
  if (json.state !== undefined) return { kind: 'state', digest: json.state, mediaType, size: json.size ?? 0 };
  return { kind: 'uri', uri: json.uri ?? '', mediaType };
}

/** Copies the bytes, because typed arrays must be aligned. */
function unpack(base64: string): ArrayBuffer {
  const bytes = Buffer.from(base64, 'base64');
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
}
