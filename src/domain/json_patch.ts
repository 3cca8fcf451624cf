import { type Operation, Pointer } from 'rfc6902';
import { diffAny } from 'rfc6902/diff.js';
import { alignArrays } from './array_alignment.ts';
import { formatJson, isExactNumber, isObject, type Json, parseJson } from './json.ts';
import { LIMITS } from './limits.ts';

/** Why two states have no JSON Patch: the names of `NoPatchReason` in state_service.proto without prefix. */
export type NoPatchReason = 'NOT_JSON' | 'TOO_LARGE' | 'DUPLICATE_KEYS' | 'TOO_COMPLEX' | 'PATCH_TOO_LARGE' | 'BUSY';

export type PatchResult = { readonly patchJson: string } | { readonly noPatch: NoPatchReason };

/**
 * S7: returns the JSON Patch (RFC 6902) that turns the first text into the second. Numbers keep their text, as in
 * `parseJson`: `1` and `1.0` differ, and no digit is lost. Work and memory are bounded by LIMITS, whatever the bytes.
 */
export function jsonPatch(one: Uint8Array, other: Uint8Array): PatchResult {
  try {
    const [input, output] = [parseDocument(one), parseDocument(other)];
    const patchJson = formatJson(new PatchMaker().diff(input, output, new Pointer()) as unknown as Json);
    return Buffer.byteLength(patchJson) > LIMITS.patchBytes ? { noPatch: 'PATCH_TOO_LARGE' } : { patchJson };
  } catch (error) {
    if (error instanceof NoPatch) return { noPatch: error.reason };
    throw error;
  }
}

class NoPatch extends Error {
  readonly reason: NoPatchReason;

  constructor(reason: NoPatchReason) {
    super(reason);
    this.reason = reason;
  }
}

/** Returns a document that may be compared. Errors: NoPatch. */
function parseDocument(bytes: Uint8Array): Json {
  const text = decode(bytes);
  const { members, values, depth } = measure(text);
  if (depth > LIMITS.patchDepth || values > LIMITS.patchValues) throw new NoPatch('TOO_COMPLEX');
  const value = parse(text);
  // Parsing drops all but the last of equal keys.
  if (countMembers(value) !== members) throw new NoPatch('DUPLICATE_KEYS');
  return value;
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new NoPatch('NOT_JSON');
  }
}

function parse(text: string): Json {
  try {
    return parseJson(text);
  } catch {
    throw new NoPatch('NOT_JSON');
  }
}

interface Measure {
  /** Members of all objects. */
  readonly members: number;
  /** Values at all depths, or more: empty objects and lists count twice. */
  readonly values: number;
  /** Objects and lists that enclose the innermost value. */
  readonly depth: number;
}

/** Measures a text without parsing it. If the text is not JSON, the result has no meaning. */
function measure(text: string): Measure {
  let [members, values, depth, deepest] = [0, 1, 0, 0];
  for (let at = 0; at < text.length; at += 1) {
    switch (text[at]) {
      case '"':
        at = endOfString(text, at);
        break;
      case ':':
        members += 1;
        break;
      case ',':
        values += 1;
        break;
      case '{':
      case '[':
        values += 1;
        depth += 1;
        deepest = Math.max(deepest, depth);
        break;
      case '}':
      case ']':
        depth -= 1;
    }
  }
  return { members, values, depth: deepest };
}

/** Returns the index of the quote that ends the string. */
function endOfString(text: string, begin: number): number {
  let at = begin + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}

function countMembers(value: Json): number {
  if (isList(value)) return value.reduce((sum: number, item) => sum + countMembers(item), 0);
  if (!isObject(value)) return 0;
  const members = Object.values(value);
  return members.reduce((sum: number, member) => sum + countMembers(member), members.length);
}

function isList(value: Json): value is readonly Json[] {
  return Array.isArray(value);
}

/** Long keys at many levels result in paths that are many times as long as the documents. Errors: NoPatch. */
function requireShortPaths({ tokens }: Pointer, ...containers: readonly Json[]): void {
  const length = tokens.reduce((sum, token) => sum + token.length + 1, 0);
  const members = containers.reduce((sum: number, value) => sum + sizeOf(value), 0);
  if (length * members > LIMITS.patchPathChars) throw new NoPatch('TOO_COMPLEX');
}

function sizeOf(value: Json): number {
  if (isList(value)) return value.length;
  return isObject(value) ? Object.keys(value).length : 1;
}

/** The shortest operation without its path, `{"op":"remove","path":""}`, and a comma. */
const OPERATION_BYTES = 26;

/** Compares lists and exact numbers by the rules of this file, and leaves other values to the library. */
class PatchMaker {
  /** Characters of list elements that may still be compared as text. */
  #room = LIMITS.patchAlignedChars;

  readonly diff = (input: Json, output: Json, pointer: Pointer): Operation[] => {
    if (isList(input) || isObject(input)) requireShortPaths(pointer, input, output);
    const operations = this.#operations(input, output, pointer);
    const bytes = operations.reduce((sum, { path }) => sum + OPERATION_BYTES + path.length, 0);
    if (bytes > LIMITS.patchBytes) throw new NoPatch('PATCH_TOO_LARGE');
    return operations;
  };

  #operations(input: Json, output: Json, pointer: Pointer): Operation[] {
    if (isList(input) && isList(output)) return this.#diffLists(input, output, pointer);
    if (isExactNumber(input) || isExactNumber(output)) {
      if (formatJson(input) === formatJson(output)) return [];
      return [{ op: 'replace', path: pointer.toString(), value: output }];
    }
    return diffAny(input, output, pointer, this.diff);
  }

  /** Elements between the aligned ones are compared in pairs. The rest is removed or added. */
  #diffLists(input: readonly Json[], output: readonly Json[], pointer: Pointer): Operation[] {
    const operations: Operation[] = [];
    let [i, j] = [0, 0];
    for (const match of this.#align(input, output)) {
      // The operations so far have replaced what was before this element by `j` elements, so its index is `j`.
      for (; i < match.input && j < match.output; i += 1, j += 1) {
        operations.push(...this.diff(input[i]!, output[j]!, pointer.add(String(j))));
      }
      const path = pointer.add(String(j)).toString();
      for (; i < match.input; i += 1) operations.push({ op: 'remove', path });
      for (; j < match.output; j += 1) {
        operations.push({ op: 'add', path: pointer.add(String(j)).toString(), value: output[j] });
      }
      i += match.length;
      j += match.length;
    }
    return operations;
  }

  #align(input: readonly Json[], output: readonly Json[]) {
    const [inputTexts, outputTexts] = [this.#textsOf(input), this.#textsOf(output)];
    if (inputTexts !== undefined && outputTexts !== undefined) return alignArrays(inputTexts, outputTexts);
    return [{ input: input.length, output: output.length, length: 0 }];
  }

  /** Returns texts that are equal only for equal elements; undefined if `#room` is used up. */
  #textsOf(list: readonly Json[]): string[] | undefined {
    const texts: string[] = [];
    for (const item of list) {
      if (this.#room <= 0) return undefined;
      const text = formatJson(item);
      this.#room -= text.length + 1;
      texts.push(text);
    }
    return texts;
  }
}
