import { describe, expect, it } from 'vitest';
import { type ComparedStep, cutJson, stepDifference } from '../../src/domain/compare.ts';
import type { Content } from '../../src/domain/step.ts';
import { makeStep, textAction, textObservation } from '../support/steps.ts';

const compare = (one: Partial<ComparedStep>, other: Partial<ComparedStep>) =>
  stepDifference(makeStep(0n, one), makeStep(0n, other));

describe('RD5: the difference between two steps', () => {
  it('ignores info, metadata, metrics, times and states', () => {
    const one = makeStep(0n, {
      infoJson: '1',
      metadataJson: '2',
      metrics: new Map([['a', 1]]),
      startTime: 1n,
      endTime: 2n,
    });
    expect(stepDifference(one, makeStep(0n))).toBeUndefined();
  });

  type Case = [string, Partial<ComparedStep>, Partial<ComparedStep>, [string, string, string]];
  it.each<Case>([
    ['text', { actions: [textAction('a')] }, { actions: [textAction('b')] }, ['actions[0].content.text', '"a"', '"b"']],
    [
      'JSON, byte for byte',
      { observations: [textObservation('', { content: { kind: 'json', json: '{"a":1}', mediaType: '' } })] },
      { observations: [textObservation('', { content: { kind: 'json', json: '{"a": 1}', mediaType: '' } })] },
      ['observations[0].content.json', '"{\\"a\\":1}"', '"{\\"a\\": 1}"'],
    ],
    [
      'bytes, in base64',
      {
        observations: [textObservation('', { content: { kind: 'data', data: new Uint8Array([1, 2]), mediaType: '' } })],
      },
      { observations: [textObservation('', { content: { kind: 'data', data: new Uint8Array([1]), mediaType: '' } })] },
      ['observations[0].content.data', '"AQI="', '"AQ=="'],
    ],
    ...(
      [
        ['dtype', { dtype: '<i4' }, '"<f4"', '"<i4"'],
        ['shape', { shape: [1, 2] }, '[2]', '[1,2]'],
        ['data', { data: new Uint8Array(8).fill(1) }, '"AAAAAAAAAAA="', '"AQEBAQEBAQE="'],
      ] as const
    ).map(([name, change, value, other]): Case => {
      const content = { kind: 'tensor', dtype: '<f4', shape: [2], data: new Uint8Array(8) } as const;
      const changed = { ...content, ...change } as Content;
      return [
        `${name} of a tensor`,
        { actions: [textAction('', { content })] },
        { actions: [textAction('', { content: changed })] },
        [`actions[0].content.tensor.${name}`, value, other],
      ];
    }),
    [
      'items of a tensor here and in a state',
      { actions: [textAction('', { content: { kind: 'tensor', dtype: '|u1', shape: [], data: new Uint8Array(1) } })] },
      { actions: [textAction('', { content: { kind: 'tensor', dtype: '|u1', shape: [], digest: 'ab' } })] },
      [
        'actions[0].content.tensor',
        '{"dtype":"|u1","shape":[],"data":"AA=="}',
        '{"dtype":"|u1","shape":[],"state_digest":"ab"}',
      ],
    ],
    [
      'media types of the same JSON',
      { actions: [textAction('', { content: { kind: 'json', json: '1', mediaType: '' } })] },
      { actions: [textAction('', { content: { kind: 'json', json: '1', mediaType: 'a/b' } })] },
      ['actions[0].content.media_type', '""', '"a/b"'],
    ],
    [
      'contents of different kinds',
      { actions: [textAction('a')] },
      { actions: [textAction('', { content: { kind: 'uri', uri: 's3://x', mediaType: 'a/b' } })] },
      ['actions[0].content', '{"text":"a"}', '{"uri":"s3://x","media_type":"a/b"}'],
    ],
    [
      'a content that one has not',
      { actions: [textAction('', { content: undefined })] },
      { actions: [textAction('')] },
      ['actions[0].content', '', '{"text":""}'],
    ],
    [
      'an action that one has not',
      { actions: [textAction('a')] },
      { actions: [textAction('a'), textAction('b', { callId: 'c1', tokenIds: [1, 2] })] },
      ['actions[1]', '', '{"type":"text","call_id":"c1","content":{"text":"b"},"token_ids":[1,2]}'],
    ],
    [
      'kept tokens, of which 0 is not none',
      { actions: [textAction('', { keptTokens: 0 })] },
      { actions: [textAction('')] },
      ['actions[0].kept_tokens', '0', ''],
    ],
    [
      'a state of token ids',
      { actions: [textAction('', { tokenIdsState: 'ab' })] },
      { actions: [textAction('', { tokenIdsState: 'cd' })] },
      ['actions[0].token_ids_state', '"ab"', '"cd"'],
    ],
    [
      'token ids',
      { actions: [textAction('', { tokenIds: [1, 2] })] },
      { actions: [textAction('', { tokenIds: [1, 3] })] },
      ['actions[0].token_ids', '[1,2]', '[1,3]'],
    ],
    [
      'logprobs that JSON has no number for',
      { actions: [textAction('', { logprobs: [-Infinity] })] },
      { actions: [textAction('', { logprobs: [0] })] },
      ['actions[0].logprobs', '["-Infinity"]', '[0]'],
    ],
    [
      'the failing of a tool',
      { observations: [textObservation('x', { isError: true })] },
      { observations: [textObservation('x')] },
      ['observations[0].is_error', 'true', 'false'],
    ],
    ['a missing reward, which is not 0', { reward: 0 }, {}, ['reward', '0', '']],
    ['a reward that is not a number', { reward: Number.NaN }, { reward: 1 }, ['reward', '"NaN"', '1']],
    ['terminated', { terminated: true }, {}, ['terminated', 'true', 'false']],
    ['truncated', { truncated: true }, {}, ['truncated', 'true', 'false']],
    [
      'the first field of several, in their order',
      { observations: [textObservation('a')], reward: 1 },
      { observations: [textObservation('b')], reward: 2 },
      ['observations[0].content.text', '"a"', '"b"'],
    ],
  ])('%s', (_what, one, other, [field, valueJson, otherValueJson]) => {
    expect(compare(one, other)).toEqual({ field, valueJson, otherValueJson });
    expect(compare(other, one)).toEqual({ field, valueJson: otherValueJson, otherValueJson: valueJson });
    expect(compare(one, one)).toBeUndefined();
  });

  it('is empty for two NaN values in any position', () => {
    const step = { reward: Number.NaN, actions: [textAction('', { logprobs: [Number.NaN] })] };
    expect(compare(step, { ...step, actions: [textAction('', { logprobs: [Number.NaN] })] })).toBeUndefined();
  });

  it('RD3: truncates very long values, which stay valid JSON text', () => {
    const text = '🌊"'.repeat(200_000);
    const found = compare({ actions: [textAction(`${text}a`)] }, { actions: [textAction(`${text}b`)] });
    expect(found?.valueJson.length).toBeLessThan(256 * 1024);
    expect(() => JSON.parse(found?.valueJson ?? '')).not.toThrow();
  });

  it('RD3: truncates JSON text at any position to valid JSON text of about the requested length', () => {
    const values = ['\u0001\u00e9"\\\\u12"\n🌊'.repeat(5), { 'a"\\': ['\u0002', 1.5] }];
    for (const text of values.map((value) => JSON.stringify(value))) {
      for (let length = 1; length < text.length; length += 1) {
        const cut = cutJson(text, length);
        expect(JSON.parse(cut)).toMatch(/…$/u);
        expect(cut.length).toBeLessThanOrEqual(2 * length + 4);
      }
      expect(cutJson(text, text.length)).toBe(text);
    }
    expect(cutJson('"aaaa"', 3)).toBe('"aa…"');
  });
});
