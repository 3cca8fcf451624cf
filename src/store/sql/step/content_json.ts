import type { Action, Content, Observation } from '../../../domain/step.ts';

/**
 * JSON of actions and observations in their columns: a readable array. Absent fields are omitted, and bytes are base64.
 * Token ids (int32) and log-probabilities (float32) are packed little-endian and base64-encoded, a quarter of their
 * size as JSON numbers.
 */
interface ActionJson {
  type?: string;
  name?: string;
  call_id?: string;
  content?: ContentJson;
  token_ids_i32?: string;
  logprobs_f32?: string;
}

interface ObservationJson {
  type?: string;
  call_id?: string;
  is_error?: true;
  content?: ContentJson;
}

interface ContentJson {
  text?: string;
  json?: string;
  data?: string;
  state?: string;
  size?: number;
  uri?: string;
  media_type?: string;
}

/** Sizes of stored states by digest. */
export type StateSizes = ReadonlyMap<string, number>;

export function bindActions(actions: readonly Action[], sizes: StateSizes): string {
  if (actions.length === 0) return '[]';
  return JSON.stringify(
    actions.map((action): ActionJson => {
      const json: ActionJson = {};
      if (action.type !== '') json.type = action.type;
      if (action.name !== '') json.name = action.name;
      if (action.callId !== '') json.call_id = action.callId;
      if (action.content !== undefined) json.content = contentToJson(action.content, sizes);
      if (action.tokenIds.length > 0) json.token_ids_i32 = pack(Int32Array.from(action.tokenIds));
      if (action.logprobs.length > 0) json.logprobs_f32 = pack(Float32Array.from(action.logprobs));
      return json;
    }),
  );
}

export function readActions(text: string): Action[] {
  if (text === '[]') return [];
  return (JSON.parse(text) as ActionJson[]).map((json) => ({
    type: json.type ?? '',
    name: json.name ?? '',
    callId: json.call_id ?? '',
    content: json.content === undefined ? undefined : contentFromJson(json.content),
    tokenIds: json.token_ids_i32 === undefined ? [] : Array.from(new Int32Array(unpack(json.token_ids_i32))),
    logprobs: json.logprobs_f32 === undefined ? [] : Array.from(new Float32Array(unpack(json.logprobs_f32))),
  }));
}

export function bindObservations(observations: readonly Observation[], sizes: StateSizes): string {
  if (observations.length === 0) return '[]';
  return JSON.stringify(
    observations.map((observation): ObservationJson => {
      const json: ObservationJson = {};
      if (observation.type !== '') json.type = observation.type;
      if (observation.callId !== '') json.call_id = observation.callId;
      if (observation.isError) json.is_error = true;
      if (observation.content !== undefined) json.content = contentToJson(observation.content, sizes);
      return json;
    }),
  );
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

function contentToJson(content: Content, sizes: StateSizes): ContentJson {
  switch (content.kind) {
    case 'text':
      return { text: content.text };
    case 'json':
      return { json: content.json };
    case 'data':
      return { data: Buffer.from(content.data).toString('base64'), media_type: content.mediaType };
    case 'state':
      return { state: content.digest, size: sizes.get(content.digest) ?? content.size, media_type: content.mediaType };
    case 'uri':
      return { uri: content.uri, media_type: content.mediaType };
  }
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

function pack(numbers: Int32Array | Float32Array): string {
  return Buffer.from(numbers.buffer).toString('base64');
}

/** Copies the bytes, because typed arrays must be aligned. */
function unpack(base64: string): ArrayBuffer {
  const bytes = Buffer.from(base64, 'base64');
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
}
