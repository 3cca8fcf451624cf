import type { Action, Content, Observation, Step } from './step.ts';

/**
 * A difference of two steps: the path of the field in `anabranch.v1.Step`, and both values as JSON text. Empty text
 * means an absent value.
 */
interface FieldDifference {
  readonly field: string;
  readonly valueJson: string;
  readonly otherValueJson: string;
}

/** The fields that comparisons of trajectories use (RD5): actions, observations, reward and end flags. */
export type ComparedStep = Pick<Step, 'actions' | 'observations' | 'reward' | 'terminated' | 'truncated'>;

/**
 * Returns the first difference of two steps in the order of fields, or undefined. Two NaN rewards are equal, and so are
 * 0 and -0.
 */
export function stepDifference(one: ComparedStep, other: ComparedStep): FieldDifference | undefined {
  return (
    listDifference('actions', one.actions, other.actions, ACTION_FIELDS) ??
    listDifference('observations', one.observations, other.observations, OBSERVATION_FIELDS) ??
    difference('reward', one.reward, other.reward) ??
    difference('terminated', one.terminated, other.terminated) ??
    difference('truncated', one.truncated, other.truncated)
  );
}

/** Fields by number, with their names on the wire. `content` is compared by its own fields. */
type Fields<Item> = readonly (readonly [name: string, value: (item: Item) => unknown])[];

const CONTENT = 'content';

const ACTION_FIELDS: Fields<Action> = [
  ['type', ({ type }) => type],
  ['name', ({ name }) => name],
  ['call_id', ({ callId }) => callId],
  [CONTENT, ({ content }) => content],
  ['token_ids', ({ tokenIds }) => tokenIds],
  ['logprobs', ({ logprobs }) => logprobs],
  ['prompt_token_ids', ({ promptTokenIds }) => promptTokenIds],
  ['kept_tokens', ({ keptTokens }) => keptTokens],
  ['token_ids_state', ({ tokenIdsState }) => tokenIdsState],
  ['prompt_token_ids_state', ({ promptTokenIdsState }) => promptTokenIdsState],
];

const OBSERVATION_FIELDS: Fields<Observation> = [
  ['type', ({ type }) => type],
  ['call_id', ({ callId }) => callId],
  ['is_error', ({ isError }) => isError],
  [CONTENT, ({ content }) => content],
];

function listDifference<Item extends Action | Observation>(
  path: string,
  one: readonly Item[],
  other: readonly Item[],
  fields: Fields<Item>,
): FieldDifference | undefined {
  const length = Math.max(one.length, other.length);
  for (let i = 0; i < length; i += 1) {
    const at = `${path}[${i}]`;
    const a = one[i];
    const b = other[i];
    const found = a === undefined || b === undefined ? missing(at, a, b, fields) : itemDifference(at, a, b, fields);
    if (found !== undefined) return found;
  }
  return undefined;
}

function itemDifference<Item>(path: string, one: Item, other: Item, fields: Fields<Item>): FieldDifference | undefined {
  for (const [name, value] of fields) {
    const at = `${path}.${name}`;
    const found =
      name === CONTENT
        ? contentDifference(at, value(one) as Content | undefined, value(other) as Content | undefined)
        : difference(at, value(one), value(other));
    if (found !== undefined) return found;
  }
  return undefined;
}

function missing<Item>(
  field: string,
  one: Item | undefined,
  other: Item | undefined,
  fields: Fields<Item>,
): FieldDifference {
  return { field, valueJson: itemJson(one, fields), otherValueJson: itemJson(other, fields) };
}

function itemJson<Item>(item: Item | undefined, fields: Fields<Item>): string {
  if (item === undefined) return '';
  const shown = fields.map(([name, value]) => {
    const own = value(item);
    return [name, name === CONTENT && own !== undefined ? contentFields(own as Content) : own] as const;
  });
  return json(Object.fromEntries(shown.filter(([, value]) => !isEmpty(value))));
}

function contentDifference(
  path: string,
  one: Content | undefined,
  other: Content | undefined,
): FieldDifference | undefined {
  if (one === undefined || other === undefined || one.kind !== other.kind) {
    if (one === other) return undefined;
    return { field: path, valueJson: contentJson(one), otherValueJson: contentJson(other) };
  }
  return fieldDifference(path, contentFields(one), contentFields(other));
}

/** Messages within are compared by their fields if both have the same ones set. */
function fieldDifference(path: string, one: WireFields, other: WireFields): FieldDifference | undefined {
  for (const name of Object.keys(one)) {
    const [at, a, b] = [`${path}.${name}`, one[name], other[name]];
    const isNested = isMessage(a) && isMessage(b) && `${Object.keys(a)}` === `${Object.keys(b)}`;
    const found = isNested ? fieldDifference(at, a, b) : difference(at, a, b);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Fields of a message by their names on the wire. */
type WireFields = Readonly<Record<string, unknown>>;

function isMessage(value: unknown): value is WireFields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function contentJson(content: Content | undefined): string {
  return content === undefined ? '' : json(contentFields(content));
}

/** Returns the fields of a content by their names on the wire. JSON text is unchanged, bytes are base64. */
function contentFields(content: Content): WireFields {
  switch (content.kind) {
    case 'text':
      return { text: content.text };
    case 'json':
      return { json: content.json, media_type: content.mediaType };
    case 'data':
      return { data: base64(content.data), media_type: content.mediaType };
    case 'state':
      return { state_digest: content.digest, media_type: content.mediaType };
    case 'uri':
      return { uri: content.uri, media_type: content.mediaType };
    case 'tensor': {
      const { dtype, shape, data, digest } = content;
      return { tensor: { dtype, shape, ...(data === undefined ? { state_digest: digest } : { data: base64(data) }) } };
    }
  }
}

function base64(data: Uint8Array): string {
  return Buffer.from(data).toString('base64');
}

function difference(field: string, one: unknown, other: unknown): FieldDifference | undefined {
  return isEqual(one, other) ? undefined : { field, valueJson: json(one), otherValueJson: json(other) };
}

function isEqual(one: unknown, other: unknown): boolean {
  if (Array.isArray(one) && Array.isArray(other)) {
    return one.length === other.length && one.every((value, i) => isEqual(value, other[i]));
  }
  return one === other || (Number.isNaN(one) && Number.isNaN(other));
}

function isEmpty(value: unknown): boolean {
  return value === undefined || value === '' || value === false || (Array.isArray(value) && value.length === 0);
}

/** Longest JSON text that is not shortened, so that two of them fit into one response. */
const MAX_CHARACTERS = 64 * 1024;

/**
 * Returns a value as JSON text. NaN and infinities become strings (`"NaN"`), as in ProtoJSON. A very long text is cut
 * and becomes a string.
 */
function json(value: unknown): string {
  if (value === undefined) return '';
  const text = JSON.stringify(value, (_key, part: unknown) =>
    typeof part === 'number' && !Number.isFinite(part) ? `${part}` : part,
  );
  return cutJson(text, MAX_CHARACTERS);
}

/**
 * Returns the JSON text if it has at most `length` characters, else its beginning as a JSON string of about that
 * length.
 */
export function cutJson(text: string, length: number): string {
  if (text.length <= length) return text;
  const begin = text.slice(0, length).toWellFormed();
  return text.startsWith('"') ? `${begin.replace(HALF_AN_ESCAPE, '$1')}…"` : JSON.stringify(`${begin}…`);
}

/** What a cut through a JSON string can leave: a backslash without a character, or incomplete hex digits. */
const HALF_AN_ESCAPE = /(?<!\\)((?:\\\\)*)\\(?:u[0-9a-f]{0,3})?$/iu;
