import { invalidField } from './errors.ts';
import { pointerPart } from './json_pointer.ts';
import { LIMITS } from './limits.ts';
import { jsonFault } from './text.ts';

/**
 * Configs as values (M4). Numbers that JavaScript would write otherwise (`1.0`, `9007199254740993`, `1e400`) stay the text they were: a config that was
 * merged still says what was written, and `1.0` is still a float where it is read.
 */
export type Json = null | boolean | number | string | ExactNumber | readonly Json[] | { readonly [key: string]: Json };

/** A number kept as it was written. Made and recognised by JavaScript itself (`JSON.rawJSON`). */
interface ExactNumber {
  readonly rawJSON: string;
}

/** ECMAScript's own, which TypeScript's library does not describe yet. */
const { rawJSON, isRawJSON } = JSON as unknown as {
  rawJSON(text: string): ExactNumber;
  isRawJSON(value: unknown): value is ExactNumber;
};

/** The text of a config as a client gives it: a JSON object, nested no deeper than rules that follow it down can go. Empty means none. */
export function requireConfig(text: string, field: string): string {
  if (text === '') return text;
  const fault = jsonFault(text) ?? configFault(text);
  if (fault !== undefined) throw invalidField(field, fault);
  return text;
}

function configFault(text: string): string | undefined {
  if (!text.trimStart().startsWith('{')) return 'must be a JSON object, such as {"lr": 0.1}';
  if (depthOf(text) <= LIMITS.configDepth) return undefined;
  return `must not be nested deeper than ${LIMITS.configDepth} levels: keep what is deeper as text`;
}

/** How many objects and lists stand around the innermost value. */
function depthOf(text: string): number {
  let [depth, deepest] = [0, 0];
  for (const [bracket] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{}]/gu)) {
    if (bracket === '{' || bracket === '[') depth += 1;
    else if (bracket === '}' || bracket === ']') depth -= 1;
    deepest = Math.max(deepest, depth);
  }
  return deepest;
}

/** Reads strict JSON text, such as `requireConfig` lets through. */
export function parseJson(text: string): Json {
  return JSON.parse(text, exactNumbers as (key: string, value: unknown) => unknown) as Json;
}

export function formatJson(value: Json): string {
  return JSON.stringify(value);
}

/** Merges objects deeply, key by key. Any other value of `overrides` replaces the value in `base`: a list, a scalar, and null, which is a value too. */
export function mergeDeep(base: Json | undefined, overrides: Json): Json {
  if (base === undefined || !isObject(base) || !isObject(overrides)) return overrides;
  const merged = new Map(Object.entries(base));
  for (const [key, value] of Object.entries(overrides)) merged.set(key, mergeDeep(merged.get(key), value));
  return Object.fromEntries(merged);
}

/** What a path of keys leads to: a key of an object, nothing, or something within a list. */
export type PathEnd = 'KEY' | 'ABSENT' | 'WITHIN_LIST';

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

/** Returns the value without the keys that the paths lead to. Objects that lose all their keys stay. Paths that lead to no key are ignored. */
export function withoutPaths(value: Json, paths: readonly (readonly string[])[]): Json {
  if (!isObject(value) || paths.length === 0) return value;
  const pathsOf = Map.groupBy(paths, ([key]) => key);
  const kept: [string, Json][] = [];
  for (const [key, inner] of Object.entries(value)) {
    const below = (pathsOf.get(key) ?? []).map((path) => path.slice(1));
    if (!below.some((path) => path.length === 0)) kept.push([key, withoutPaths(inner, below)]);
  }
  return Object.fromEntries(kept);
}

/** A place where two values differ: its JSON Pointer (RFC 6901), and both values as JSON text (empty: none there). */
export interface JsonDifference {
  readonly path: string;
  readonly valueJson: string;
  readonly otherValueJson: string;
}

/** Where two values differ, in order of path; objects are compared key by key, lists and everything else as a whole. */
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

/** Equal values have equal texts: keys are sorted, and numbers are written in one way as far as a double holds them. */
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

/** Whether a double surely holds the number that the text writes: no more digits than it keeps, and neither too large nor too small for all of them. */
function isExact(text: string): boolean {
  const digits = text
    .replace(/[eE].*$/u, '')
    .replaceAll(/[^0-9]/gu, '')
    .replace(/^0+/u, '')
    .replace(/0+$/u, '');
  const size = Math.abs(Number(text));
  return digits === '' || (digits.length <= 15 && size >= SMALLEST_NORMAL && Number.isFinite(size));
}

/** Below it doubles keep fewer digits. */
const SMALLEST_NORMAL = 2 ** -1022;
