import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findInvalidValue } from '../../src/domain/json_fault.ts';
import { jsonFault } from '../../src/domain/text.ts';

describe('W11: a value that strict JSON does not allow', () => {
  it.each([
    ['NaN', '', 'NaN'],
    ['{"obs": [1, 2, {"reward": NaN}]}', '/obs/2/reward', 'NaN'],
    ['{"a": [], "b": {}, "c": [[0], [-Infinity]]}', '/c/1/0', '-Infinity'],
    ['{"a/b~c": {"\\u0064": Infinity}}', '/a~1b~0c/d', 'Infinity'],
    ['{"": NaN}', '/', 'NaN'],
    ['{"NaN": "NaN, Infinity", "x": "\\"", "y": undefined}', '/y', 'undefined'],
    ['[1, 01]', '/1', '01'],
    ['{"a": 1, "b": \'x\'}', '/b', "'x'"],
    ['{"\\x": NaN}', '/\\x', 'NaN'],
  ])('is found in %s', (text, path, value) => {
    expect(findInvalidValue(text)).toEqual({ path, value });
  });

  it.each(['{"a": 1,}', '{"a": "', '[1', '', '"\u0001"', '{"a"'])(
    'is not reported where %s is invalid for another reason',
    (text) => {
      expect(findInvalidValue(text)).toBeUndefined();
      expect(jsonFault(text)).toMatch(/^must be strict JSON text: \S/u);
    },
  );

  it('is not found in valid JSON, and is found when inserted there', () => {
    const json = fc.jsonValue({ maxDepth: 6 });
    fc.assert(
      fc.property(json, (value) => {
        expect(findInvalidValue(JSON.stringify(value))).toBeUndefined();
      }),
    );
    const place = fc.array(fc.oneof(fc.string(), fc.nat({ max: 3 })), { maxLength: 8 });
    fc.assert(
      fc.property(place, json, (keys, other) => {
        const text = keys.reduceRight<string>((inner, key) => {
          const before = JSON.stringify(other);
          if (typeof key === 'number') return `[${`${before}, `.repeat(key)}${inner}, ${before}]`;
          return `{${JSON.stringify(`${key}~`)}: ${before}, ${JSON.stringify(key)} : ${inner}}`;
        }, 'NaN');
        const path = keys.map((key) => `/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
        expect(findInvalidValue(text)).toEqual({ path, value: 'NaN' });
      }),
    );
  });

  it('is named by its JSON Pointer, with the way to send it', () => {
    expect(jsonFault('{"loss": [0.1, NaN]}')).toBe(
      'must be strict JSON text: the value at /loss/1 is NaN, which JSON does not allow. Send null or the string "NaN" instead',
    );
    expect(jsonFault('-Infinity')).toContain('the value is -Infinity');
    expect(jsonFault('[True]')).toBe('must be strict JSON text: the value at /0 is True, which is not JSON');
  });

  it('is named in a short message, however long or unusual the text is', () => {
    expect(jsonFault(`{"${'k'.repeat(100_000)}": NaN}`)).toMatch(/^.{150,300}$/u);
    expect(jsonFault(`[${'x'.repeat(100_000)}]`)).toMatch(/^.{150,300}$/u);
    expect(jsonFault('{"a\\u0000\\u200d": NaN}')).toContain('at /a?? is NaN');
    expect(jsonFault(`{"a": "${'\\"'.repeat(500_000)}", "b": NaN}`)).toContain('at /b is NaN');
    expect(jsonFault(`${'['.repeat(500_000)}NaN`)).toContain('/0/0/0');
  });
});
