import { describe, expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Plan, StagePlan } from '../../src/domain/run.ts';
import { configMismatch, effectiveConfig, statedDifferences } from '../../src/domain/run_config.ts';

const EVAL: StagePlan = { kind: 'EVAL', stages: 1, groupsPerStage: 2, groupSize: 3, maxTurns: 4, substeps: 5 };
const PLAN: Plan = { stagePlans: [EVAL], concurrency: 1 };

describe('effective configs', () => {
  it('M4: without anything of its own a run works by the text that it takes over, byte for byte; without any config by {}', () => {
    const text = ' {"b": 1.0,\n "a": [] } ';
    expect(effectiveConfig(text, '', 'f')).toBe(text);
    expect(effectiveConfig('', '', 'f')).toBe('{}');
  });

  it('M4: what it says is merged by RFC 7396: objects by key, null removes, everything else replaces', () => {
    expect(effectiveConfig('{"a":"b"}', '{"a":"c"}', 'f')).toBe('{"a":"c"}');
    expect(effectiveConfig('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', 'f')).toBe('{"a":{"b":"d"}}');
    expect(effectiveConfig('{"a":[1,2]}', '{"a":[null]}', 'f')).toBe('{"a":[null]}');
    expect(effectiveConfig('{"e":null}', '{"a":1}', 'f')).toBe('{"e":null,"a":1}');
    expect(effectiveConfig('', '{"a":{"b":{"c":null}}}', 'f')).toBe('{"a":{"b":{}}}');
    expect(effectiveConfig('{"__proto__":1}', '{"__proto__":{"x":1}}', 'f')).toBe('{"__proto__":{"x":1}}');
  });

  it('M4: a result over the limit is refused with its size in bytes, by the field that was given', () => {
    const limit = LIMITS.effectiveConfigBytes;
    const base = JSON.stringify({ a: 'é'.repeat(limit / 4) });
    // What is not a value in {"a":"…","b":"…"}.
    const around = 15;
    const own = (bytes: number) => JSON.stringify({ b: 'x'.repeat(bytes) });
    const left = limit / 2 - around;
    expect(Buffer.byteLength(effectiveConfig(base, own(left), 'f'))).toBe(limit);
    const refused = { reason: 'INVALID_REQUEST', violations: [expect.objectContaining({ field: 'config_json' })] };
    expect(() => effectiveConfig(base, own(left + 1), 'config_json')).toThrow(expect.objectContaining(refused));
    expect(() => effectiveConfig(base, own(left + 1), 'config_json')).toThrow(`${limit + 1} bytes`);
  });
});

describe('what is stated against what is there', () => {
  const differences = (
    there: Partial<{ configJson: string; plan: Plan }>,
    stated: Partial<{ configJson: string; plan: Plan }>,
  ) => statedDifferences({ configJson: '', plan: undefined, ...there }, { configJson: '', plan: undefined, ...stated });

  it('M4: nothing stated differs from nothing', () => {
    expect(differences({ configJson: '{"a":1}', plan: PLAN }, {})).toEqual([]);
    expect(differences({}, { configJson: '{}' })).toEqual([]);
  });

  it('M4: configs are compared by value, and every place that differs is named', () => {
    expect(differences({ configJson: '{"a":1,"b":2}' }, { configJson: ' {"b":2.0, "a":1e0}' })).toEqual([]);
    expect(
      differences({ configJson: '{"a":{"x":1,"y":[1]}}' }, { configJson: '{"a":{"x":2,"y":[1,2]},"z":null}' }),
    ).toEqual(['config_json/a/x', 'config_json/a/y', 'config_json/z']);
    expect(differences({ configJson: '{"a":1}' }, { configJson: '{"a":9007199254740993}' })).toEqual(['config_json/a']);
  });

  it('M4: plans are compared field by field, kind by kind', () => {
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

  it('M4: the refusal names twenty fields at most, none of them long, whole letters only', () => {
    const fields = Array.from({ length: 25 }, (_, i) => `config_json/${i}${'🌊'.repeat(200)}`);
    const error = configMismatch({ id: 'id', name: 'one' }, fields);
    expect(error.metadata.run_id).toBe('id');
    expect(error.metadata.fields?.split(',')).toHaveLength(20);
    expect(error.message).toContain('and 5 more');
    expect(error.message.isWellFormed()).toBe(true);
    expect(error.message.length).toBeLessThan(8000);
  });
});
