/** Numbers in the contents of steps by JSON Pointer, for the server and the page. Needs nothing of Node. */
import { isInTensor, type TensorForm, tensorNumber, tensorOfState } from './tensor.ts';

/** Keys and indexes from the outside in. */
export type JsonPath = readonly string[];

/** An action or observation: its type, and its content if this is JSON or a tensor. */
export interface NumbersPart {
  readonly type: string;
  readonly json?: string | undefined;
  /** The media type of the JSON; empty if it is plain. */
  readonly mediaType?: string | undefined;
  readonly tensor?: NumbersTensor | undefined;
}

/** A tensor that is stored with its step, or whose bytes a state has. */
export type NumbersTensor = TensorForm & {
  readonly data?: Uint8Array | undefined;
  readonly stateDigest?: string | undefined;
};

/** Returns the bytes of a state. Undefined if they are not at hand. */
export type BytesOf = (digest: string) => Uint8Array | undefined;

/**
 * Returns the number at a path in the actions or observations of a step. Parts of a nested value have their path as
 * type (`robot.arm[0]`): a path that begins with it leads into this part. Otherwise, the first content with a number at
 * the path has it. Undefined if there is none.
 */
export function numberIn(parts: readonly NumbersPart[], path: JsonPath, bytesOf: BytesOf): number | undefined {
  for (const part of parts) {
    const prefix = pathOfType(part.type);
    if (prefix.length === 0 || prefix.some((key, at) => path[at] !== key)) continue;
    const found = contentNumber(part, path.slice(prefix.length), bytesOf);
    if (found !== undefined) return found;
  }
  for (const part of parts) {
    const found = contentNumber(part, path, bytesOf);
    if (found !== undefined) return found;
  }
  return undefined;
}

function contentNumber({ json, mediaType, tensor }: NumbersPart, path: JsonPath, bytesOf: BytesOf): number | undefined {
  if (json !== undefined) return numberAt(json, path, mediaType);
  if (tensor === undefined || !isInTensor(tensor, path)) return undefined;
  const { data, stateDigest } = tensor;
  const bytes = data ?? (stateDigest === undefined ? undefined : bytesOf(stateDigest));
  return bytes === undefined ? undefined : tensorNumber(tensor, bytes, path);
}

/**
 * The media type of JSON with tags for what JSON does not have (docs/python.md). Paths do not name the tags: `/at/0` is
 * the first number of `{"at": {"$tuple": [1, 2]}}`.
 */
const TAGGED = 'application/vnd.anabranch.value+json';

/** Returns the number at a path in JSON text. Undefined if there is none, or if the text is not JSON. */
export function numberAt(json: string, path: JsonPath, mediaType = ''): number | undefined {
  const isTagged = mediaType.startsWith(TAGGED) && json.includes('"$');
  let value: unknown;
  try {
    value = isTagged ? JSON.parse(json, (_key, part: unknown) => untagged(part)) : JSON.parse(json);
  } catch {
    return undefined;
  }
  for (const part of path) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part)) return undefined;
    if (Array.isArray(value) && !/^(0|[1-9]\d*)$/.test(part)) return undefined;
    value = (value as Readonly<Record<string, unknown>>)[part];
  }
  return typeof value === 'number' ? value : undefined;
}

function untagged(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const { $tuple = value, $float, ...others } = value as { readonly $tuple?: unknown; readonly $float?: unknown };
  if (Object.keys(others).length > 0) return value;
  return typeof $float === 'string' ? Number($float) : $tuple;
}

const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });

/** Returns the number at a path in a state that is JSON or a tensor. Undefined if there is none. */
export function stateNumber(bytes: Uint8Array, mediaType: string, path: JsonPath): number | undefined {
  const form = tensorOfState(mediaType);
  return form === undefined ? numberAt(utf8.decode(bytes), path, mediaType) : tensorNumber(form, bytes, path);
}

/** A part of a path as type: `robot`, `.arm`, `[0]` or `["a key"]`. */
const TYPE_PART = /(?:^|\.)([A-Za-z_][A-Za-z0-9_]*)|\[(0|[1-9]\d*)\]|\[("(?:[^"\\]|\\.)*")\]/suy;

/** Returns the path that a type is. Empty if it is none. */
export function pathOfType(type: string): JsonPath {
  const path: string[] = [];
  const pattern = new RegExp(TYPE_PART);
  while (pattern.lastIndex < type.length) {
    const [, name, index, key] = pattern.exec(type) ?? [];
    const part = name ?? index ?? (key === undefined ? undefined : textIn(key));
    if (part === undefined) return [];
    path.push(part);
  }
  return path;
}

function textIn(json: string): string | undefined {
  try {
    return JSON.parse(json) as string;
  } catch {
    return undefined;
  }
}
