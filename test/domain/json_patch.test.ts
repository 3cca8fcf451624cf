import fc from 'fast-check';
import { applyPatch } from 'rfc6902';
import { describe, expect, it } from 'vitest';
import { formatJson, isObject, type Json, parseJson } from '../../src/domain/json.ts';
import { jsonPatch } from '../../src/domain/json_patch.ts';
import { parsePointer } from '../../src/domain/json_pointer.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { CHARACTER } from '../support/character.ts';
import { dose } from '../support/dose.ts';

const utf8 = (text: string) => new TextEncoder().encode(text);
const diff = (one: string, other: string) => jsonPatch(utf8(one), utf8(other));

function patchOf(one: string, other: string): string {
  const result = diff(one, other);
  if ('noPatch' in result) throw new Error(`no patch: ${result.noPatch}`);
  return result.patchJson;
}

/** Applies a patch to a text as RFC 6902 says. Numbers keep their text, and no key is special. */
function applied(one: string, patchJson: string): Json {
  let document = parseJson(one);
  for (const operation of parseJson(patchJson) as readonly Json[]) {
    const { op, path, value } = operation as { op: string; path: string; value: Json };
    document = changed(document, parsePointer(path) ?? [], op, value);
  }
  return document;
}

function changed(at: Json, [key, ...below]: string[], op: string, value: Json): Json {
  if (key === undefined) return value;
  const isLast = below.length === 0;
  if (Array.isArray(at)) {
    const index = Number(key);
    const found = at[index] as Json;
    if (!isLast) return at.with(index, changed(found, below, op, value));
    expect(index).toBeLessThanOrEqual(op === 'add' ? at.length : at.length - 1);
    return at.toSpliced(index, op === 'add' ? 0 : 1, ...(op === 'remove' ? [] : [value]));
  }
  if (!isObject(at)) throw new Error(`nothing at ${key}`);
  const members = new Map(Object.entries(at));
  expect(members.has(key)).toBe(!isLast || op !== 'add');
  if (!isLast) members.set(key, changed(members.get(key)!, below, op, value));
  else if (op === 'remove') members.delete(key);
  else members.set(key, value);
  return Object.fromEntries(members);
}

/** A text that is equal for equal documents: keys are sorted. */
function sorted(value: Json): string {
  if (Array.isArray(value)) return `[${value.map((item: Json) => sorted(item)).join()}]`;
  if (!isObject(value)) return formatJson(value);
  return `{${Object.entries(value)
    .map(([key, inner]) => `${JSON.stringify(key)}:${sorted(inner)}`)
    .sort()
    .join()}}`;
}

const NUMBERS = ['0', '-0', '1', '1.0', '1e2', '9007199254740993', '1e400', '0.10000000000000001', '-1.5'];
const KEYS = ['a', 'b', '', '~', '/', '~1', '__proto__', 'constructor', '0', '-', '\u{d800}', '\u{1f600}'];

/** JSON texts with few different parts, so that two of them have parts in common. */
const { document: arbitraryDocument } = fc.letrec<{ document: string; leaf: string; list: string; object: string }>(
  (tie) => ({
    document: fc.oneof({ depthSize: 'small' }, tie('leaf'), tie('list'), tie('object')),
    leaf: fc.oneof(
      fc.constantFrom('null', 'true', 'false', ...NUMBERS),
      fc.string({ unit: CHARACTER, maxLength: 3 }).map((text) => JSON.stringify(text)),
    ),
    list: fc.array(tie('document'), { maxLength: 8 }).map((items) => `[${items.join(', ')}]`),
    object: fc
      .uniqueArray(fc.tuple(fc.constantFrom(...KEYS), tie('document')), { selector: ([key]) => key, maxLength: 6 })
      .map((members) => `{${members.map(([key, value]) => `${JSON.stringify(key)}: ${value}`).join()}}`),
  }),
);

/** Lists of a few elements that are repeated, moved, added and removed. */
const arbitraryList = fc
  .array(fc.constantFrom('1', '2', '3', '4', '5', '[1]', '{"a":1}', '"x"'), { maxLength: 12 })
  .map((items) => `[${items.join()}]`);

describe('jsonPatch', () => {
  it.each([
    ['two documents', arbitraryDocument],
    ['two lists', arbitraryList],
  ])('S7: applied to the first of %s, it gives the second, with the text of all numbers', (_, arbitrary) => {
    fc.assert(
      fc.property(arbitrary, arbitrary, (one, other) => {
        expect(sorted(applied(one, patchOf(one, other)))).toBe(sorted(parseJson(other)));
      }),
      { numRuns: dose(300, 3000) },
    );
  });

  it('S7: the library applies it too', () => {
    const withoutProto = arbitraryDocument.filter((text) => !text.includes('__proto__') && !text.includes('constr'));
    fc.assert(
      fc.property(withoutProto, withoutProto, (one, other) => {
        const document = { root: JSON.parse(one) as unknown };
        const operations = JSON.parse(patchOf(`{"root": ${one}}`, `{"root": ${other}}`)) as never[];
        expect(applyPatch(document, operations).filter((error) => error !== null)).toEqual([]);
        expect(JSON.stringify(sortedKeys(document.root))).toBe(JSON.stringify(sortedKeys(JSON.parse(other))));
      }),
    );
  });

  it.each([
    ['equal but for white space and the order of keys', '{"a": 1, "b":[]}\n', '{"b":[],"a":1}', '[]'],
    ['a changed member', '{"a":1,"b":2}', '{"a":1,"b":3}', '[{"op":"replace","path":"/b","value":3}]'],
    ['escaped keys', '{"a/b":{"~":1}}', '{"a/b":{}}', '[{"op":"remove","path":"/a~1b/~0"}]'],
    [
      'an element that was inserted far from another that changed',
      '[{"id":1},{"id":2},{"id":3},{"id":4,"x":1},{"id":5}]',
      '[{"id":0},{"id":1},{"id":2},{"id":3},{"id":4,"x":2},{"id":5}]',
      '[{"op":"add","path":"/0","value":{"id":0}},{"op":"replace","path":"/4/x","value":2}]',
    ],
    [
      'elements that were removed',
      '[1,2,3,4,5]',
      '[1,4,5]',
      '[{"op":"remove","path":"/1"},{"op":"remove","path":"/1"}]',
    ],
    ['repeated elements at the end', '[7,0,0,0]', '[7,1,0,0,0]', '[{"op":"add","path":"/1","value":1}]'],
    ['the whole document', '[]', '{}', '[{"op":"replace","path":"","value":{}}]'],
    [
      'a number beyond 2^53',
      '[9007199254740992]',
      '[9007199254740993]',
      '[{"op":"replace","path":"/0","value":9007199254740993}]',
    ],
    ['a float in place of an integer', '{"a":1}', '{"a":1.0}', '[{"op":"replace","path":"/a","value":1.0}]'],
    ['a number beyond doubles', '[1e400]', '[1e400, 1e400]', '[{"op":"add","path":"/0","value":1e400}]'],
    [
      'a lone surrogate',
      String.raw`["\ud800"]`,
      String.raw`["\ud801"]`,
      String.raw`[{"op":"replace","path":"/0","value":"\ud801"}]`,
    ],
    [
      'a key that is special in JavaScript',
      '{}',
      '{"__proto__":{"a":1}}',
      '[{"op":"add","path":"/__proto__","value":{"a":1}}]',
    ],
  ])('S7: %s', (_, one, other, patch) => {
    expect(patchOf(one, other)).toBe(patch);
  });

  it('S7: keys that are special in JavaScript change no prototype', () => {
    patchOf('{"__proto__":{"a":1},"constructor":{"prototype":{"b":1}}}', '{"__proto__":{"a":2,"c":1},"toString":1}');
    const plain = {} as Record<string, unknown>;
    expect([plain.a, plain.b, plain.c]).toEqual([undefined, undefined, undefined]);
  });

  it.each([
    ['bytes that are not UTF-8', 'NOT_JSON', Uint8Array.of(0x22, 0xff, 0x22)],
    ['a byte order mark', 'NOT_JSON', utf8('\ufeff{}')],
    ['nothing', 'NOT_JSON', new Uint8Array()],
    ['NaN', 'NOT_JSON', utf8('{"a": NaN}')],
    ['a comma too many', 'NOT_JSON', utf8('[1,]')],
    ['a string without an end', 'NOT_JSON', utf8('["a')],
    ['a key that occurs twice', 'DUPLICATE_KEYS', utf8('{"a":{"b":1,"c":":","b":1}}')],
    ['a key that occurs twice, once with an escape', 'DUPLICATE_KEYS', utf8('{"a":1,"\\u0061":2}')],
    ['a depth of 10,000', 'TOO_COMPLEX', utf8('['.repeat(10_000) + ']'.repeat(10_000))],
    ['a depth of 100,000 objects', 'TOO_COMPLEX', utf8(`${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`)],
    ['too many values', 'TOO_COMPLEX', utf8(`[0${',0'.repeat(LIMITS.patchValues)}]`)],
  ])('S7: there is none for %s: %s', (_, noPatch, bytes) => {
    expect(jsonPatch(bytes, utf8('{}'))).toEqual({ noPatch });
    expect(jsonPatch(utf8('{}'), bytes)).toEqual({ noPatch });
  });

  it('S7: documents of the greatest depth are compared', () => {
    const deep = (value: number) =>
      `${'[{"a":'.repeat(LIMITS.patchDepth / 2)}${value}${'}]'.repeat(LIMITS.patchDepth / 2)}`;
    const path = '/0/a'.repeat(LIMITS.patchDepth / 2);
    expect(patchOf(deep(1), deep(2))).toBe(`[{"op":"replace","path":"${path}","value":2}]`);
    expect(diff(`[${deep(1)}]`, '1')).toEqual({ noPatch: 'TOO_COMPLEX' });
  });

  it('S7: a patch that is larger than a response is none', () => {
    const text = (size: number) => JSON.stringify('x'.repeat(size));
    const around = '[{"op":"replace","path":"","value":""}]'.length;
    expect(patchOf('1', text(LIMITS.patchBytes - around))).toHaveLength(LIMITS.patchBytes);
    expect(diff('1', text(LIMITS.patchBytes - around + 1))).toEqual({ noPatch: 'PATCH_TOO_LARGE' });
    expect(diff('1', JSON.stringify('é'.repeat(LIMITS.patchBytes / 2)))).toEqual({ noPatch: 'PATCH_TOO_LARGE' });
    const members = (prefix: string) => JSON.stringify(Object.fromEntries(range(50_000).map((i) => [prefix + i, i])));
    expect(diff(members('a'), members('b'))).toEqual({ noPatch: 'PATCH_TOO_LARGE' });
  });

  it('S7: long keys at many levels do not multiply', () => {
    const list = (value: number) => JSON.stringify(range(60_000).map(() => value));
    const deep = (value: number) => `{"${'k'.repeat(3000)}":`.repeat(900) + list(value) + '}'.repeat(900);
    expect(diff(deep(1), deep(2))).toEqual({ noPatch: 'TOO_COMPLEX' });
  });

  it('S7: 10,000 elements, of which one is gone and one has changed, take two operations', () => {
    const list = (skipped: number, hp: number) =>
      JSON.stringify(
        range(10_000).flatMap((id) => (id === skipped ? [] : [{ id, at: [id / 2, 1.5], hp: id === 9000 ? hp : 100 }])),
      );
    expect(patchOf(list(-1, 100), list(50, 7))).toBe(
      '[{"op":"remove","path":"/50"},{"op":"replace","path":"/8999/hp","value":7}]',
    );
  });

  it('S7: lists that are nested too deeply to be aligned are compared by index', () => {
    const nested = (begin: string) => '['.repeat(100) + [begin, ...range(60_000).map(String)].join() + ']'.repeat(100);
    expect(sorted(applied(nested('"a"'), patchOf(nested('"a"'), nested('"b"'))))).toBe(nested('"b"'));
  });
});

function range(length: number): number[] {
  return Array.from({ length }, (_, i) => i);
}

function sortedKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortedKeys);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sortedKeys(inner)]),
  );
}
