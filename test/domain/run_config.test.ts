import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parsePointer, pointerPart } from '../../src/domain/json_pointer.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Plan, StagePlan } from '../../src/domain/run.ts';
import {
  configMismatch,
  effectiveConfig,
  ROOT_CONFIG,
  requireRemovedPaths,
  type Stated,
  statedDifferences,
} from '../../src/domain/run_config.ts';
import { CHARACTER } from '../support/character.ts';
import {
  arbitraryConfig,
  keyPathsOf,
  leavesOf,
  leavesOfText,
  leavesWithout,
  mergedLeaves,
  textOf,
} from './config_model.ts';

const EVAL: StagePlan = { kind: 'EVAL', stages: 1, groupsPerStage: 2, groupSize: 3, maxTurns: 4, substeps: 5 };
const UNSTATED: Stated = { configJson: '', removedConfigPaths: [], plan: undefined };
const PLAN: Plan = { stagePlans: [EVAL], concurrency: 1 };

const ODD_KEYS = ['', ' ', 'a/b', 'm~n', '~1', '0', '-', '"', '\u00e9', '🌊', '__proto__', 'constructor', 'toString'];
const pointer = (path: readonly string[]) => path.map(pointerPart).join('');
const effective = (base: string, configJson: string, removedConfigPaths: readonly string[] = []) =>
  effectiveConfig(base, { configJson, removedConfigPaths }, ROOT_CONFIG);
const violation = (field: string, description: string) => ({
  reason: 'INVALID_REQUEST',
  violations: [{ field, description: expect.stringContaining(description) }],
});

describe('effective configs', () => {
  it('M4: without an own config, the effective config is the text of the base, byte for byte, or {} without a base', () => {
    const text = ' {"b": 1.0,\n "a": [] } ';
    expect(effective(text, '')).toBe(text);
    expect(effective('', '')).toBe('{}');
  });

  it('M4: the own config is merged recursively; lists and scalars are replaced, and null is a value', () => {
    expect(effective('{"a":"b"}', '{"a":"c"}')).toBe('{"a":"c"}');
    expect(effective('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}')).toBe('{"a":{"b":"d","c":null}}');
    expect(effective('{"a":[1,2]}', '{"a":[null]}')).toBe('{"a":[null]}');
    expect(effective('{"e":null}', '{"a":1}')).toBe('{"e":null,"a":1}');
    expect(effective('', '{"wandb_project":null}')).toBe('{"wandb_project":null}');
    expect(effective('{"__proto__":1}', '{"__proto__":{"x":1}}')).toBe('{"__proto__":{"x":1}}');
  });

  it('M4: a result above the limit is refused with its size in bytes, and names the field that was set', () => {
    const limit = LIMITS.effectiveConfigBytes;
    const base = JSON.stringify({ a: 'é'.repeat(limit / 4) });
    // The part of {"a":"…","b":"…"} that is not a value.
    const around = 15;
    const own = (bytes: number) => JSON.stringify({ b: 'x'.repeat(bytes) });
    const left = limit / 2 - around;
    expect(Buffer.byteLength(effective(base, own(left)))).toBe(limit);
    expect(() => effective(base, own(left + 1))).toThrow(
      expect.objectContaining(violation('config_json', `${limit + 1} bytes`)),
    );
    expect(Buffer.byteLength(effective(base, own(left + 1), ['/a']))).toBeLessThan(limit);
  });
});

describe('removed paths of a config', () => {
  it('M4: are removed before the own config is merged, which can set them again', () => {
    const base = '{"lr":1.50,"opt":{"name":"adam","eps":9007199254740993},"drop":[1]}';
    expect(effective(base, '', ['/opt/name'])).toBe('{"lr":1.50,"opt":{"eps":9007199254740993},"drop":[1]}');
    expect(effective(base, '', ['/drop', '/lr'])).toBe('{"opt":{"name":"adam","eps":9007199254740993}}');
    expect(effective(base, '{"opt":{"betas":null}}', ['/opt'])).toBe('{"lr":1.50,"drop":[1],"opt":{"betas":null}}');
  });

  it('M4: leave an object that loses its last key, and match a key whose value is null', () => {
    expect(effective('{"a":{"b":{"c":null}}}', '', ['/a/b/c'])).toBe('{"a":{"b":{}}}');
    expect(effective('{"a":1,"a":{"b":2}}', '', ['/a/b'])).toBe('{"a":{}}');
  });

  it('M4: are all resolved before any is removed, so they may overlap and repeat in any order', () => {
    const base = '{"a":{"b":{"c":1}},"d":2}';
    for (const paths of [
      ['/a', '/a/b', '/a/b/c'],
      ['/a/b/c', '/a/b', '/a'],
      ['/a', '/a'],
    ])
      expect(effective(base, '', paths)).toBe('{"d":2}');
  });

  it.each(ODD_KEYS)('RFC 6901: name any key, such as %j', (key) => {
    const base = JSON.stringify(
      Object.fromEntries([
        [key, 1],
        [
          'k',
          Object.fromEntries([
            [key, 2],
            ['b', 3],
          ]),
        ],
      ]),
    );
    expect(JSON.parse(effective(base, '', [pointer([key]), pointer(['k', key])]))).toEqual({ k: { b: 3 } });
  });

  it('M4: reach a key at the maximal nesting of a config', () => {
    const nested = (inner: string) => `${'{"a":'.repeat(99)}${inner}${'}'.repeat(99)}`;
    expect(effective(nested('{"x":1}'), '', [`${'/a'.repeat(99)}/x`])).toBe(nested('{}'));
  });

  it.each([
    ['/b', 'is absent'],
    ['/a/c', 'is absent'],
    ['/a/b/c', 'is absent'],
    ['/toString', 'is absent'],
    ['/', 'is absent'],
    ['/list/0', 'points into a list'],
    ['/list/-', 'points into a list'],
    ['/list/0/x', 'points into a list'],
    ['/list/9', 'points into a list'],
  ])('M4: are refused with their index if they lead to no key: %s', (path, why) => {
    const base = '{"a":{"b":1.0},"list":[{"x":1}],"c":null}';
    const refused = violation('removed_config_paths[2]', why);
    expect(() => effective(base, '{"b":1}', ['/a', '/c', path])).toThrow(expect.objectContaining(refused));
  });

  it('M4: are refused as absent for a run without a base config', () => {
    expect(() => effective('', '{"a":1}', ['/a'])).toThrow(
      expect.objectContaining(violation('removed_config_paths[0]', 'absent')),
    );
  });

  it.each(['', 'lr', 'a/b', '#/a', '/a~', '/~2', '/a/~'])(
    'RFC 6901: are refused if they are no pointer to a key: %j',
    (path) => {
      const refused = violation('removed_config_paths[1]', 'must be a JSON Pointer');
      expect(() => requireRemovedPaths(['/a', path])).toThrow(expect.objectContaining(refused));
    },
  );

  it.each(['/\0', '/\ud800', '/a\udc00b'])('W11: are refused like other text that cannot be stored: %j', (path) => {
    const refused = violation('removed_config_paths[1]', 'without U+0000');
    expect(() => requireRemovedPaths(['/a', path])).toThrow(expect.objectContaining(refused));
  });

  it('RFC 6901: parse to the keys that the pointer was made of, whatever these are', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.string({ unit: CHARACTER }), fc.constantFrom(...ODD_KEYS))), (path) => {
        expect(parsePointer(pointer(path))).toEqual(path);
      }),
    );
  });

  it('RFC 6901: are parsed by the grammar, for any text', () => {
    const text = fc.string({ unit: fc.constantFrom('/', '~', '0', '1', 'a', '\n') });
    fc.assert(
      fc.property(text, (path) => {
        const isPointer = (path === '' || path.startsWith('/')) && !/~(?![01])/u.test(path);
        expect(parsePointer(path) !== undefined).toBe(isPointer);
        if (isPointer) expect(pointer(parsePointer(path) ?? [])).toBe(path);
      }),
    );
  });

  it('M4: with the merge, give the same result as a model of paths and leaves', () => {
    const cases = fc.tuple(arbitraryConfig, arbitraryConfig).chain(([base, own]) => {
      const paths = keyPathsOf(base);
      const removed: fc.Arbitrary<string[][]> =
        paths.length === 0 ? fc.constant([]) : fc.array(fc.constantFrom(...paths), { maxLength: 8 });
      return fc.record({ base: fc.constant(base), own: fc.constant(own), removed });
    });
    fc.assert(
      fc.property(cases, ({ base, own, removed }) => {
        const result = effective(textOf(base), textOf(own), removed.map(pointer));
        const expected = mergedLeaves(leavesWithout(leavesOf(base), removed), leavesOf(own));
        expect(leavesOfText(result)).toEqual(expected);
      }),
    );
  });

  it('M4: are refused exactly if one of them leads to no key, and the first of these is named', () => {
    const path = fc.array(fc.constantFrom('a', 'b', 'c/d', '~1', '', '0', '__proto__'), { minLength: 1, maxLength: 3 });
    fc.assert(
      fc.property(arbitraryConfig, fc.array(path, { maxLength: 4 }), (base, paths) => {
        const known = new Set(keyPathsOf(base).map((each) => pointer(each)));
        const bad = paths.findIndex((each) => !known.has(pointer(each)));
        const make = () => effective(textOf(base), '', paths.map(pointer));
        if (bad < 0) make();
        else expect(make).toThrow(expect.objectContaining(violation(`removed_config_paths[${bad}]`, 'must lead to')));
      }),
    );
  });
});

describe('the comparison of a request with an existing run', () => {
  const differences = (there: Partial<Stated>, stated: Partial<Stated>) =>
    statedDifferences({ ...UNSTATED, ...there }, { ...UNSTATED, ...stated });

  it('M4: an unset field differs from nothing', () => {
    expect(differences({ configJson: '{"a":1}', plan: PLAN }, {})).toEqual([]);
    expect(differences({}, { configJson: '{}' })).toEqual([]);
  });

  it('M4: configs are compared by value, and every difference is named', () => {
    expect(differences({ configJson: '{"a":1,"b":2}' }, { configJson: ' {"b":2.0, "a":1e0}' })).toEqual([]);
    expect(
      differences({ configJson: '{"a":{"x":1,"y":[1]}}' }, { configJson: '{"a":{"x":2,"y":[1,2]},"z":null}' }),
    ).toEqual(['config_json/a/x', 'config_json/a/y', 'config_json/z']);
    expect(differences({ configJson: '{"a":1}' }, { configJson: '{"a":9007199254740993}' })).toEqual(['config_json/a']);
  });

  it('M4: removed paths are compared as a set, and together with the config', () => {
    const there = { configJson: '{"lr":1}', removedConfigPaths: ['/a', '/b'] };
    expect(differences(there, {})).toEqual([]);
    expect(differences(there, { ...there, removedConfigPaths: ['/b', '/a', '/b'] })).toEqual([]);
    expect(differences(there, { ...there, removedConfigPaths: ['/a'] })).toEqual(['removed_config_paths']);
    expect(differences(there, { configJson: '{"lr":1}' })).toEqual(['removed_config_paths']);
    expect(differences(there, { removedConfigPaths: ['/a', '/b'] })).toEqual(['config_json/lr']);
    expect(differences({}, { removedConfigPaths: ['/a'] })).toEqual(['removed_config_paths']);
  });

  it('M4: plans are compared by kind and field', () => {
    expect(differences({ plan: PLAN }, { plan: { ...PLAN, stagePlans: [{ ...EVAL }] } })).toEqual([]);
    const other = { kind: 'EVAL', stages: 9, groupsPerStage: 9, groupSize: 9, maxTurns: 9, substeps: 9 } as const;
    expect(differences({ plan: PLAN }, { plan: { stagePlans: [other], concurrency: 9 } })).toEqual([
      'plan.concurrency',
      'plan.stage_plans[EVAL].stages',
      'plan.stage_plans[EVAL].groups_per_stage',
      'plan.stage_plans[EVAL].group_size',
      'plan.stage_plans[EVAL].max_turns',
      'plan.stage_plans[EVAL].substeps',
    ]);
    const more = { ...PLAN, stagePlans: [{ ...EVAL, kind: 'BASELINE' }, EVAL] } as const;
    expect(differences({ plan: PLAN }, { plan: more })).toEqual(['plan.stage_plans[BASELINE]']);
    expect(differences({ plan: more }, { plan: PLAN })).toEqual(['plan.stage_plans[BASELINE]']);
    expect(differences({}, { plan: PLAN })).toEqual(['plan']);
  });

  it('M4: the error names at most twenty fields, none of them long, truncated between characters', () => {
    const fields = Array.from({ length: 25 }, (_, i) => `config_json/${i}${'🌊'.repeat(200)}`);
    const error = configMismatch({ id: 'id', name: 'one' }, fields);
    expect(error.metadata.run_id).toBe('id');
    expect(error.metadata.fields?.split(',')).toHaveLength(20);
    expect(error.message).toContain('and 5 more');
    expect(error.message.isWellFormed()).toBe(true);
    expect(error.message.length).toBeLessThan(8000);
  });
});
