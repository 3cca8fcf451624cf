import { invalidField } from './errors.ts';
import { pointerPart } from './json_pointer.ts';
import { LIMITS } from './limits.ts';
import { jsonFault } from './text.ts';

/**
 * Configs as values (M4). Numbers that JavaScript would write differently (`1.0`, `9007199254740993`, `1e400`) keep
 * their text. A merged config therefore contains the numbers as written, and readers still see `1.0` as a float.
 */
export type Json = null | boolean | number | string | ExactNumber | readonly Json[] | { readonly [key: string]: Json };

/** A number in its original text. Created and recognised by JavaScript itself (`JSON.rawJSON`). */
interface ExactNumber {
  readonly rawJSON: string;
}

/** ECMAScript functions that TypeScript's library does not declare yet. */
const { rawJSON, isRawJSON } = JSON as unknown as {
  rawJSON(text: string): ExactNumber;
  isRawJSON(value: unknown): value is ExactNumber;
};

/** Checks the text of a config: a JSON object within the bound of depth. Returns the text. Empty means none. */
export function requireConfig(text: string, field: string): string {
  if (text === '') return text;
  const fault = jsonFault(text) ?? configFault(text);
  if (fault !== undefined) throw invalidField(field, fault);
  return text;
}

function configFault(text: string): string | undefined {
  if (!text.trimStart().startsWith('{')) return 'must be a JSON object, such as {"lr": 0.1}';
  if (depthOf(text) <= LIMITS.configDepth) return undefined;
  return `must not be nested deeper than ${LIMITS.configDepth} levels: store deeper values as text`;
}

/** Returns how many objects and lists enclose the innermost value. */
function depthOf(text: string): number {
  let [depth, deepest] = [0, 0];
  for (const [bracket] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{}]/gu)) {
    if (bracket === '{' || bracket === '[') depth += 1;
    else if (bracket === '}' || bracket === ']') depth -= 1;
    deepest = Math.max(deepest, depth);
  }
  return deepest;
}

/** Parses strict JSON text that `requireConfig` has accepted. */
export function parseJson(text: string): Json {
  return JSON.parse(text, exactNumbers as (key: string, value: unknown) => unknown) as Json;
}

export function formatJson(value: Json): string {
  return JSON.stringify(value);
}

/**
 * Merges objects deeply, key by key. Any other value of `overrides`, including lists, scalars and null, replaces the
 * value in `base`.
 */
export function mergeDeep(base: Json | undefined, overrides: Json): Json {
  if (base === undefined || !isObject(base) || !isObject(overrides)) return overrides;
  const merged = new Map(Object.entries(base));
  for (const [key, value] of Object.entries(overrides)) merged.set(key, mergeDeep(merged.get(key), value));
  return Object.fromEntries(merged);
}

/**
 * Merges two texts, of which the second one is a config (`requireConfig`). It replaces a text that is no config: only
 * values within the bound of depth can be merged.
 */
export function mergeJsonText(base: string, overrides: string): string {
  if (base === '' || configFault(base) !== undefined) return overrides;
  return formatJson(mergeDeep(parseJson(base), parseJson(overrides)));
}

/** What a path of keys leads to: a key of an object, nothing, or a value within a list. */
type PathEnd = 'KEY' | 'ABSENT' | 'WITHIN_LIST';

export function followPath(value: Json, path: readonly string[]): PathEnd {
  let at = value;
  for (const key of path) {
    if (Array.isArray(at)) return 'WITHIN_LIST';
    const next = isObject(at) ? own(at, key) : undefined;
    if (next === undefined) return 'ABSENT';
    at = next;
  }
  return 'KEY';
}

/**
 * Returns the value without the keys that the paths lead to. Objects that lose all their keys stay. Paths that lead to
 * no key are ignored.
 */
export function withoutPaths(value: Json, paths: readonly (readonly string[])[]): Json {
  if (!isObject(value) || paths.length === 0) return value;
  const pathsOf = Map.groupBy(paths, ([key]) => key);
  const entries: [string, Json][] = [];
  for (const [key, inner] of Object.entries(value)) {
    const below = (pathsOf.get(key) ?? []).map((path) => path.slice(1));
    if (!below.some((path) => path.length === 0)) entries.push([key, withoutPaths(inner, below)]);
  }
  return Object.fromEntries(entries);
}

/**
 * A difference of two values: its JSON Pointer (RFC 6901), and both values as JSON text. Empty text means an absent
 * value.
 */
export interface JsonDifference {
  readonly path: string;
  readonly valueJson: string;
  readonly otherValueJson: string;
}

/**
 * Yields the differences of two values in order of path. Objects are compared key by key, lists and other values as a
 * whole.
 */
export function* jsonDifferences(one: Json | undefined, other: Json | undefined, path = ''): Generator<JsonDifference> {
  if (one !== undefined && other !== undefined && isObject(one) && isObject(other)) {
    for (const key of [...new Set([...Object.keys(one), ...Object.keys(other)])].sort()) {
      yield* jsonDifferences(own(one, key), own(other, key), `${path}${pointerPart(key)}`);
    }
    return;
  }
  const [valueJson, otherValueJson] = [canonical(one), canonical(other)];
  if (valueJson !== otherValueJson) yield { path, valueJson, otherValueJson };
}

export function isObject(value: Json): value is { readonly [key: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isRawJSON(value);
}

function own(value: { readonly [key: string]: Json }, key: string): Json | undefined {
  return Object.hasOwn(value, key) ? value[key] : undefined;
}

/**
 * Returns a text that is equal for equal values: keys are sorted, and numbers that a double can hold exactly have one
 * form.
 */
function canonical(value: Json | undefined): string {
  if (value === undefined) return '';
  if (Array.isArray(value)) return `[${value.map((item: Json) => canonical(item)).join(',')}]`;
  if (isObject(value)) {
    const entries = Object.keys(value).sort();
    return `{${entries.map((key) => `${JSON.stringify(key)}:${canonical(own(value, key))}`).join(',')}}`;
  }
  const text = JSON.stringify(value);
  return isRawJSON(value) && isExact(text) ? JSON.stringify(Number(text)) : text;
}

function exactNumbers(_key: string, value: unknown, context: { readonly source?: string }): unknown {
  const { source } = context;
  return typeof value !== 'number' || source === undefined || String(value) === source ? value : rawJSON(source);
}

/**
 * Returns whether a double certainly holds the written number: its digits and its exponent are within the range of
 * doubles.
 */
function isExact(text: string): boolean {
  const digits = text
    .replace(/[eE].*$/u, '')
    .replaceAll(/[^0-9]/gu, '')
    .replace(/^0+/u, '')
    .replace(/0+$/u, '');
  const size = Math.abs(Number(text));
  return digits === '' || (digits.length <= 15 && size >= SMALLEST_NORMAL && Number.isFinite(size));
}

/** Smaller doubles have fewer digits. */
const SMALLEST_NORMAL = 2 ** -1022;
