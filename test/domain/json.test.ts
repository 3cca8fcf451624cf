import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  formatJson,
  type JsonDifference,
  jsonDifferences,
  mergeDeep,
  parseJson,
  requireConfig,
} from '../../src/domain/json.ts';
import { arbitraryConfig, leavesOf, leavesOfText, mergedLeaves, NUMBERS, textOf } from './config_model.ts';

const merged = (base: string, overrides: string) => formatJson(mergeDeep(parseJson(base), parseJson(overrides)));
const differences = (one: string | undefined, other: string | undefined) => [
  ...jsonDifferences(
    one === undefined ? undefined : parseJson(one),
    other === undefined ? undefined : parseJson(other),
  ),
];
const difference = (path: string, valueJson: string, otherValueJson: string): JsonDifference => ({
  path,
  valueJson,
  otherValueJson,
});

/** Base, overrides, result. */
const MERGES = [
  ['{"a":"b"}', '{"a":"c"}', '{"a":"c"}'],
  ['{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'],
  ['{"a":{"b":1,"c":2}}', '{"a":{"c":3,"d":4}}', '{"a":{"b":1,"c":3,"d":4}}'],
  ['{"a":"b"}', '{"a":null}', '{"a":null}'],
  ['{"a":{"b":"c"}}', '{"a":null}', '{"a":null}'],
  ['{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d","c":null}}'],
  ['{"a":null}', '{"a":{"b":null}}', '{"a":{"b":null}}'],
  ['{}', '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{"ccc":null}}}'],
  ['{"e":null}', '{"a":1}', '{"e":null,"a":1}'],
  ['{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'],
  ['{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'],
  ['{"a":[1,2]}', '{"a":[null]}', '{"a":[null]}'],
  ['{"a":[{"b":"c"}]}', '{"a":[{"d":1}]}', '{"a":[{"d":1}]}'],
  ['{"a":[1,2]}', '{"a":{"b":null}}', '{"a":{"b":null}}'],
  ['{"a":{"b":1}}', '{"a":{}}', '{"a":{"b":1}}'],
  ['{"a":1,"a":{"b":2}}', '{"a":{"c":3,"c":4}}', '{"a":{"b":2,"c":4}}'],
] as const;

describe('M4: merging configs', () => {
  it.each(MERGES)('merges objects, replaces everything else and keeps null: %s and %s make %s', (base, own, result) => {
    expect(merged(base, own)).toBe(result);
  });

  it.each(NUMBERS)('keeps the number %s as written, in both configs', (text) => {
    expect(merged(`{"a":${text}}`, '{"b":1}')).toBe(`{"a":${text},"b":1}`);
    expect(merged('{"b":1}', `{"a":[${text}]}`)).toBe(`{"b":1,"a":[${text}]}`);
    expect(merged(`{"a":${text}}`, '{"a":{"b":1}}')).toBe('{"a":{"b":1}}');
  });

  it('accepts any key: __proto__, constructor, an empty one', () => {
    const text = '{"__proto__":{"a":1},"constructor":2,"":3}';
    expect(merged('{}', text)).toBe(text);
    expect(merged(text, '{"__proto__":{"b":2},"constructor":null}')).toBe(
      '{"__proto__":{"a":1,"b":2},"constructor":null,"":3}',
    );
    expect(({} as { a?: unknown }).a).toBeUndefined();
  });

  it('gives the same result as a model of paths and leaves', () => {
    fc.assert(
      fc.property(arbitraryConfig, arbitraryConfig, (base, own) => {
        const result = merged(textOf(base), textOf(own));
        expect(leavesOfText(result)).toEqual(mergedLeaves(leavesOf(base), leavesOf(own)));
      }),
    );
  });

  it('is idempotent, and does not change its arguments', () => {
    fc.assert(
      fc.property(arbitraryConfig, arbitraryConfig, (a, b) => {
        const [base, own] = [parseJson(textOf(a)), parseJson(textOf(b))];
        const before = [formatJson(base), formatJson(own)];
        const once = mergeDeep(base, own);
        expect(formatJson(mergeDeep(once, own))).toBe(formatJson(once));
        expect([formatJson(base), formatJson(own)]).toEqual(before);
      }),
    );
  });
});

describe('JSON text, parsed and written again', () => {
  it('is unchanged, whatever its numbers', () => {
    const number = fc.oneof(
      fc.constantFrom(...NUMBERS),
      fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
      fc.bigInt().map(String),
    );
    fc.assert(
      fc.property(fc.array(number), (numbers) => {
        const text = `{"a":[${numbers.join(',')}],"b":{"c":"\\u0000\\"[{"}}`;
        expect(formatJson(parseJson(text))).toBe(text);
      }),
    );
  });
});

describe('RD5: the differences of two configs', () => {
  it.each<[string, string, string, JsonDifference[]]>([
    ['none, for any order of keys', '{"a":1,"b":{"c":2,"d":3}}', '{"b":{"d":3,"c":2},"a":1}', []],
    ['none, for any notation of a number', '{"a":1.0,"b":1e2,"c":0.50}', '{"a":1,"b":100,"c":5e-1}', []],
    [
      'by path, in order of keys',
      '{"optimizer":{"lr":0.1,"name":"adam"},"a":1}',
      '{"optimizer":{"lr":0.01,"name":"sgd"},"a":2}',
      [
        difference('/a', '1', '2'),
        difference('/optimizer/lr', '0.1', '0.01'),
        difference('/optimizer/name', '"adam"', '"sgd"'),
      ],
    ],
    [
      'values that one side lacks',
      '{"a":null}',
      '{"b":[]}',
      [difference('/a', 'null', ''), difference('/b', '', '[]')],
    ],
    [
      'lists as a whole, in canonical form',
      '{"a":[1.0,{"c":1,"b":2}]}',
      '{"a":[1,{"b":2}]}',
      [difference('/a', '[1,{"b":2,"c":1}]', '[1,{"b":2}]')],
    ],
    ['an object and a value', '{"a":{"b":1}}', '{"a":1}', [difference('/a', '{"b":1}', '1')]],
    [
      'RFC 6901: keys with ~ and /, empty keys, inherited names',
      '{"a/b":1,"m~n":2,"":3,"~1":4,"toString":5}',
      '{}',
      [
        difference('/', '3', ''),
        difference('/a~1b', '1', ''),
        difference('/m~0n', '2', ''),
        difference('/toString', '5', ''),
        difference('/~01', '4', ''),
      ],
    ],
    [
      'numbers that are equal as doubles',
      '{"a":9007199254740993,"b":1e400,"c":5e-324}',
      '{"a":9007199254740992,"b":1e401,"c":5.1e-324}',
      [
        difference('/a', '9007199254740993', '9007199254740992'),
        difference('/b', '1e400', '1e401'),
        difference('/c', '5e-324', '5.1e-324'),
      ],
    ],
  ])('are %s', (_name, one, other, expected) => {
    expect(differences(one, other)).toEqual(expected);
    expect(differences(other, one)).toEqual(
      expected.map(({ path, valueJson, otherValueJson }) => difference(path, otherValueJson, valueJson)),
    );
  });

  it('are the whole value if one side has none', () => {
    expect(differences('{"b":1,"a":2}', undefined)).toEqual([difference('', '{"a":2,"b":1}', '')]);
    expect(differences(undefined, undefined)).toEqual([]);
  });

  it('are empty for a value with itself; applied as a patch they give the other config', () => {
    const config = fc.dictionary(fc.string(), fc.dictionary(fc.string(), fc.jsonValue(), { noNullPrototype: true }), {
      noNullPrototype: true,
    });
    fc.assert(
      fc.property(config, config, (a, b) => {
        const [one, other] = [JSON.stringify(a), JSON.stringify(b)];
        expect(differences(one, one)).toEqual([]);
        const patched = structuredClone(JSON.parse(one)) as object;
        for (const { path, otherValueJson } of differences(one, other)) setAt(patched, path, otherValueJson);
        expect(patched).toEqual(JSON.parse(other));
      }),
    );
  });
});

describe('a config from a client', () => {
  const nested = (depth: number) => `${'{"a":'.repeat(depth)}"[[\\"{{"${'}'.repeat(depth)}`;

  it.each(['', '{}', ' {"a":1} ', nested(100), `{"a":"${'[{'.repeat(5000)}"}`])(
    'is stored byte for byte: %.20s',
    (text) => {
      expect(requireConfig(text, 'config_json')).toBe(text);
    },
  );

  it.each([
    ['null', 'must be a JSON object'],
    ['[1]', 'must be a JSON object'],
    ['"{}"', 'must be a JSON object'],
    [' 1', 'must be a JSON object'],
    ['{"a":NaN}', 'must be strict JSON text'],
    ['{} {}', 'must be strict JSON text'],
    ['{"a":"\0"}', 'without U+0000'],
    [nested(101), 'must not be nested deeper than 100 levels'],
    [`{"a":${'['.repeat(60_000)}${']'.repeat(60_000)}}`, 'must not be nested deeper than 100 levels'],
  ])('is refused with its field in the error: %.20s', (text, why) => {
    expect(() => requireConfig(text, 'config_json')).toThrow(
      expect.objectContaining({
        reason: 'INVALID_REQUEST',
        message: expect.stringMatching(/^config_json: /u),
        violations: [{ field: 'config_json', description: expect.stringContaining(why) }],
      }),
    );
  });

  it('is checked equally fast as one string of 128 KiB or as 128 KiB of escapes', () => {
    for (const text of [`{"a":"${'x'.repeat(131_000)}"}`, `{"a":"${'\\"'.repeat(65_000)}"}`])
      expect(requireConfig(text, 'config_json')).toBe(text);
  });
});

/** Resolves a path as RFC 6901 describes. */
function setAt(root: object, path: string, valueJson: string): void {
  const keys = path
    .split('/')
    .slice(1)
    .map((key) => key.replaceAll('~1', '/').replaceAll('~0', '~'));
  const last = keys.pop() as string;
  let at = root as Record<string, object>;
  for (const key of keys) at = Object.getOwnPropertyDescriptor(at, key)?.value as Record<string, object>;
  if (valueJson === '') delete at[last];
  else
    Object.defineProperty(at, last, {
      value: JSON.parse(valueJson),
      enumerable: true,
      writable: true,
      configurable: true,
    });
}
