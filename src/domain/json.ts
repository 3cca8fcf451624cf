/**
 * Configs as values (M4). Numbers that a double would change (`9007199254740993`, `1e400`) stay the text they were: a config that was merged
 * still says what was written.
 */
export type Json = null | boolean | number | string | ExactNumber | readonly Json[] | { readonly [key: string]: Json };

/** A number that no double holds: kept as it was written. Made and recognised by JavaScript itself (`JSON.rawJSON`). */
interface ExactNumber {
  readonly rawJSON: string;
}

/** ECMAScript's own, which TypeScript's library does not describe yet. */
const { rawJSON, isRawJSON } = JSON as unknown as {
  rawJSON(text: string): ExactNumber;
  isRawJSON(value: unknown): value is ExactNumber;
};

/** Reads strict JSON text. */
export function parseJson(text: string): Json {
  return JSON.parse(text, exactNumbers as (key: string, value: unknown) => unknown) as Json;
}

export function formatJson(value: Json): string {
  return JSON.stringify(value);
}

/** JSON Merge Patch, RFC 7396: what an object patches is patched key by key, null removes, anything else replaces. */
export function mergePatch(target: Json | undefined, patch: Json): Json {
  if (!isObject(patch)) return patch;
  const merged = new Map(target !== undefined && isObject(target) ? Object.entries(target) : []);
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) merged.delete(key);
    else merged.set(key, mergePatch(merged.get(key), value));
  }
  return Object.fromEntries(merged);
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
      yield* jsonDifferences(own(one, key), own(other, key), `${path}/${escaped(key)}`);
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

/** Equal values have equal texts: keys are sorted. */
function canonical(value: Json | undefined): string {
  if (value === undefined) return '';
  if (Array.isArray(value)) return `[${value.map((item: Json) => canonical(item)).join(',')}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const entries = Object.keys(value).sort();
  return `{${entries.map((key) => `${JSON.stringify(key)}:${canonical(own(value, key))}`).join(',')}}`;
}

function escaped(key: string): string {
  return key.replaceAll('~', '~0').replaceAll('/', '~1');
}

function exactNumbers(_key: string, value: unknown, context: { readonly source?: string }): unknown {
  const { source } = context;
  if (typeof value !== 'number' || source === undefined) return value;
  return isExact(value, source) ? value : rawJSON(source);
}

/** Whether the double says what the text does: as many digits as a double surely keeps, or a text that it is written as. */
function isExact(value: number, source: string): boolean {
  if (!Number.isFinite(value)) return false;
  if (String(value) === source) return true;
  const digits = source
    .replace(/[eE].*$/u, '')
    .replaceAll(/[^0-9]/gu, '')
    .replace(/^0+/u, '');
  return digits.length <= 15 && (value !== 0 || digits === '');
}
