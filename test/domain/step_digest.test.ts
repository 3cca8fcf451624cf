import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Action, Observation, Step } from '../../src/domain/step.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { STEP_VECTORS, stepOf } from '../support/step_vectors.ts';
import { makeStep, newState, stateRef, textAction, textObservation } from '../support/steps.ts';

describe('stepDigest, the stable form', () => {
  it.each(STEP_VECTORS)('W6: golden vector: $name', ({ step, canonicalHex, digest }) => {
    expect(createHash('sha256').update(Buffer.from(canonicalHex, 'hex')).digest('hex')).toBe(digest);
    expect(stepDigest(stepOf(step))).toBe(digest);
  });

  it('W6: differs between all golden steps', () => {
    expect(new Set(STEP_VECTORS.map(({ digest }) => digest)).size).toBe(STEP_VECTORS.length);
  });

  it('W6: is the same before and after a far larger step', () => {
    const small = makeStep(1n, { infoJson: '{"a":1}' });
    const before = stepDigest(small);
    const text = '🌊é'.repeat(300_000);
    const form = Buffer.concat([
      Buffer.from('010000000000000002', 'hex'),
      Buffer.from([7]),
      Buffer.alloc(4),
      Buffer.from(text, 'utf8'),
    ]);
    form.writeUInt32BE(Buffer.byteLength(text), 10);
    expect(stepDigest(makeStep(2n, { infoJson: text }))).toBe(createHash('sha256').update(form).digest('hex'));
    expect(stepDigest(small)).toBe(before);
  });
});

describe('stepDigest, equal steps', () => {
  it('W6: ignores the order of metrics and labels', () => {
    fc.assert(
      fc.property(anyStep, (step) => {
        const metrics = new Map([...step.metrics].reverse());
        const labels = new Map([...step.labels].reverse());
        expect(stepDigest({ ...step, metrics, labels })).toBe(stepDigest(step));
      }),
    );
  });

  it('W6: treats all bit patterns of NaN as equal', () => {
    const odd = new DataView(new ArrayBuffer(8));
    odd.setBigUint64(0, 0xfff8_0000_dead_beefn);
    const other = odd.getFloat64(0);
    const digest = stepDigest(makeStep(1n, { reward: Number.NaN, metrics: new Map([['a', Number.NaN]]) }));
    expect(stepDigest(makeStep(1n, { reward: other, metrics: new Map([['a', other]]) }))).toBe(digest);
  });

  it('W6: excludes what the server sets: commit time, epoch, reward sum, sizes', () => {
    const state = stateRef(newState('a'));
    const image = { kind: 'state', digest: state.digest, mediaType: 'image/png', size: 1 } as const;
    const step = makeStep(1n, { states: [state], observations: [textObservation('', { content: image })] });
    const stored = {
      ...step,
      commitTime: 5n,
      writerEpoch: 3n,
      rewardSum: 9,
      states: [{ ...state, size: 77 }],
      observations: [textObservation('', { content: { ...image, size: 99 } })],
    };
    expect(stepDigest(stored)).toBe(stepDigest(step));
  });

  it('W6: does not depend on the buffer that holds the bytes of a content', () => {
    const wide = new Uint8Array([9, 1, 2, 3, 9]);
    const content = (data: Uint8Array) =>
      makeStep(1n, { observations: [textObservation('', { content: { kind: 'data', data, mediaType: '' } })] });
    expect(stepDigest(content(wide.subarray(1, 4)))).toBe(stepDigest(content(new Uint8Array([1, 2, 3]))));
  });
});

describe('stepDigest, different steps', () => {
  const state = stateRef(newState('a'));
  const base = makeStep(7n, {
    actions: [textAction('go', { name: 'n', callId: 'c', tokenIds: [1, 2], logprobs: [-1] })],
    observations: [textObservation('ok')],
    reward: 1,
    metrics: new Map([['a', 1]]),
    startTime: 1n,
    endTime: 2n,
    infoJson: '{}',
    metadataJson: '[]',
    states: [state],
    labels: new Map([['phase', 'train']]),
  });
  const action = base.actions[0] as Action;
  const observation = base.observations[0] as Observation;
  const withAction = (changes: Partial<Action>): Partial<Step> => ({ actions: [{ ...action, ...changes }] });
  const withObservation = (changes: Partial<Observation>): Partial<Step> => ({
    observations: [{ ...observation, ...changes }],
  });

  const CHANGES: Readonly<Record<string, Partial<Step>>> = {
    'the number': { stepNumber: 8n },
    'no action': { actions: [] },
    'the action twice': { actions: [action, action] },
    'type of an action': withAction({ type: 'code' }),
    'name of an action': withAction({ name: 'm' }),
    'call_id of an action': withAction({ callId: 'd' }),
    'no content of an action': withAction({ content: undefined }),
    'text of an action': withAction({ content: { kind: 'text', text: 'gone' } }),
    'combining instead of composed text': withAction({ content: { kind: 'text', text: 'e\u0301' } }),
    'composed instead of combining text': withAction({ content: { kind: 'text', text: '\u00e9' } }),
    'JSON with the same letters as the text': withAction({ content: { kind: 'json', json: 'go', mediaType: '' } }),
    'media type of JSON': withAction({ content: { kind: 'json', json: 'go', mediaType: 'a/b' } }),
    'bytes with the same letters as the text': withAction({
      content: { kind: 'data', data: Buffer.from('go'), mediaType: '' },
    }),
    'a tensor with the same letters as the text': withAction({
      content: { kind: 'tensor', dtype: '|S2', shape: [], data: Buffer.from('go') },
    }),
    'dtype of a tensor': withAction({
      content: { kind: 'tensor', dtype: '|u1', shape: [2], data: Buffer.from('go') },
    }),
    'shape of a tensor': withAction({
      content: { kind: 'tensor', dtype: '|u1', shape: [1, 2], data: Buffer.from('go') },
    }),
    'a tensor whose items a state has': withAction({
      content: { kind: 'tensor', dtype: '|u1', shape: [2], digest: state.digest },
    }),
    'a uri with the same letters as the text': withAction({ content: { kind: 'uri', uri: 'go', mediaType: '' } }),
    'token_ids in another order': withAction({ tokenIds: [2, 1] }),
    'no token_ids': withAction({ tokenIds: [] }),
    logprobs: withAction({ logprobs: [-2] }),
    'prompt_token_ids in place of token_ids': withAction({ tokenIds: [], promptTokenIds: [1, 2] }),
    prompt_token_ids: withAction({ promptTokenIds: [1, 2] }),
    'kept_tokens 0': withAction({ keptTokens: 0 }),
    'kept_tokens 1': withAction({ keptTokens: 1 }),
    'a state of token_ids': withAction({ tokenIds: [], tokenIdsState: state.digest }),
    'a state of prompt_token_ids': withAction({ promptTokenIdsState: state.digest }),
    'a state of prompt_token_ids of another action': {
      actions: [action, { ...action, promptTokenIdsState: state.digest }],
    },
    'a logprob more': withAction({ logprobs: [-1, -1] }),
    'no observation': { observations: [] },
    'type of an observation': withObservation({ type: 'image' }),
    'call_id of an observation': withObservation({ callId: 'c' }),
    is_error: withObservation({ isError: true }),
    'text of an observation': withObservation({ content: { kind: 'text', text: 'OK' } }),
    'no reward (absent is not zero)': { reward: undefined },
    'reward 0': { reward: 0 },
    'reward -0': { reward: -0 },
    'reward NaN': { reward: Number.NaN },
    terminated: { terminated: true },
    truncated: { truncated: true },
    'info_json by a space': { infoJson: '{ }' },
    'no info_json': { infoJson: '' },
    metadata_json: { metadataJson: '[1]' },
    'info and metadata swapped': { infoJson: '[]', metadataJson: '{}' },
    'value of a metric': { metrics: new Map([['a', 2]]) },
    'metric NaN': { metrics: new Map([['a', Number.NaN]]) },
    'key of a metric by case': { metrics: new Map([['A', 1]]) },
    'one more metric, 0': {
      metrics: new Map([
        ['a', 1],
        ['b', 0],
      ]),
    },
    'no metrics': { metrics: new Map() },
    'start_time by a nanosecond': { startTime: 2n },
    'start_time before the epoch': { startTime: -1n },
    'no start_time': { startTime: undefined },
    'end_time by a nanosecond': { endTime: 3n },
    'no end_time': { endTime: undefined },
    'times swapped': { startTime: 2n, endTime: 1n },
    'only an end_time, of the start_time': { startTime: undefined, endTime: 1n },
    'name of a state': { states: [{ ...state, name: 'agent' }] },
    'digest of a state': { states: [stateRef(newState('b'))] },
    'media type of a state': { states: [{ ...state, mediaType: '' }] },
    'no state': { states: [] },
    'value of a label': { labels: new Map([['phase', 'test']]) },
    'key of a label': { labels: new Map([['stage', 'train']]) },
    'one more label, empty': {
      labels: new Map([
        ['phase', 'train'],
        ['x', ''],
      ]),
    },
    'no labels': { labels: new Map() },
  };

  it.each(Object.entries(CHANGES))('W6: %s', (_, change) => {
    expect(stepDigest({ ...base, ...change })).not.toBe(stepDigest(base));
  });

  it('W6: all of these changes differ from each other', () => {
    const digests = Object.values(CHANGES).map((change) => stepDigest({ ...base, ...change }));
    expect(new Set(digests).size).toBe(digests.length);
  });

  it('W6, W10: attached states do not change the digest', () => {
    const attached = { ...stateRef(newState('b'), 'later'), attachTime: 1n };
    expect(stepDigest({ ...base, states: [...base.states, attached] })).toBe(stepDigest(base));
    expect(stepDigest({ ...base, states: [attached] })).toBe(stepDigest({ ...base, states: [] }));
  });

  it('W6: text moved from one field to the next changes the digest', () => {
    const split = (type: string, name: string) =>
      stepDigest(makeStep(1n, { actions: [textAction('', { type, name })] }));
    expect(split('ab', '')).not.toBe(split('a', 'b'));
    expect(split('', 'ab')).not.toBe(split('a', 'b'));
  });

  it('W6: any two different steps have different digests', () => {
    fc.assert(
      fc.property(anyStep, anyStep, (one, other) => {
        expect(stepDigest(one) === stepDigest(other)).toBe(plain(one) === plain(other));
        expect(stepDigest({ ...one })).toBe(stepDigest(one));
      }),
    );
  });
});

/** A step as text in another form than the canonical one. The text distinguishes -0, 0 and undefined. */
function plain(step: Step): string {
  return JSON.stringify(step, (_, value: unknown) => {
    if (typeof value === 'bigint') return `${value}n`;
    if (typeof value === 'number') return Object.is(value, -0) ? '-0' : `${value}`;
    if (value instanceof Map) return [...value].sort(([a], [b]) => (a < b ? -1 : 1));
    if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
    return value === undefined ? 'absent' : value;
  });
}
