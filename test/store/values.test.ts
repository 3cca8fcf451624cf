import fc from 'fast-check';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { StoredStep } from '../../src/domain/step.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { makeStep, newState, stateRef, textAction, textObservation } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { readWhole } from './scene.ts';

describeStore('values of steps', (on) => {
  async function throughStore(fields: Parameters<typeof makeStep>[1]): Promise<StoredStep> {
    const scene = on.scene();
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, fields)]);
    return (await scene.steps(made))[0]?.step as StoredStep;
  }

  it('W11: a step is returned as it was stored, whatever its values', async () => {
    const scene = on.scene();
    const made = await scene.create();
    let next = 0n;
    await fc.assert(
      fc.asyncProperty(fc.array(anyStep, { minLength: 1, maxLength: 5 }), async (steps) => {
        const batch = steps.map((step, i) => makeStep(next + BigInt(i), { ...step, stepNumber: next + BigInt(i) }));
        await scene.append(made, batch);
        const lineage = [{ key: made.ref.key, from: 0n, to: next + BigInt(batch.length) }];
        const range = { from: next, to: next + BigInt(batch.length), maxSteps: 100, maxBytes: 1e6 };
        const read = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
        next += BigInt(batch.length);
        for (const [i, { step }] of read.entries()) {
          const sent = batch[i]!;
          expect(step).toMatchObject({ ...sent, metrics: expect.any(Map), labels: expect.any(Map) });
          expect(step.metrics).toEqual(sent.metrics);
          expect(step.labels).toEqual(sent.labels);
          expect(stepDigest(step)).toBe(stepDigest(sent));
        }
        expect(read).toHaveLength(batch.length);
      }),
      { numRuns: 60 },
    );
  });

  it.each([
    ['missing', undefined],
    ['0', 0],
    ['-0', -0],
    ['NaN', Number.NaN],
    ['Infinity', Infinity],
    ['-Infinity', -Infinity],
    ['the smallest', 5e-324],
    ['the largest', Number.MAX_VALUE],
    ['0.1', 0.1],
    ['beyond 2^53', 2 ** 60 + 2 ** 10],
  ])('W11: a reward of %s is kept', async (_, reward) => {
    expect((await throughStore({ reward })).reward).toBe(reward);
  });

  it('FM4: numbers in lists and maps keep NaN, infinities, -0 and the bounds of int32', async () => {
    const logprobs = [0, -0, Number.NaN, Infinity, -Infinity, Math.fround(-0.1)];
    const tokenIds = [0, -1, 2 ** 31 - 1, -(2 ** 31)];
    const metrics = new Map([
      ['NaN', Number.NaN],
      ['-0', -0],
      ['Infinity', Infinity],
      ['__proto__', 1],
      ['constructor', 2],
      ['2', 2],
      ['10', 10],
    ]);
    const step = await throughStore({ actions: [textAction('', { logprobs, tokenIds })], metrics });
    expect(step.actions[0]?.logprobs).toEqual(logprobs);
    expect(step.actions[0]?.tokenIds).toEqual(tokenIds);
    expect(step.metrics).toEqual(metrics);
  });

  it('FM3: the six kinds of content, and none, are kept distinct; empty text, bytes and uri are kept', async () => {
    const contents = [
      undefined,
      { kind: 'text', text: '' },
      { kind: 'json', json: '""', mediaType: '' },
      { kind: 'json', json: '""', mediaType: 'application/geo+json' },
      { kind: 'data', data: new Uint8Array(), mediaType: '' },
      { kind: 'data', data: Uint8Array.from({ length: 256 }, (_, i) => i), mediaType: 'image/png' },
      { kind: 'uri', uri: '', mediaType: '' },
      { kind: 'uri', uri: 'https://example.org/ä?b=c#d', mediaType: 'text/html' },
      { kind: 'tensor', dtype: '<f8', shape: [], data: new Uint8Array(8).fill(255) },
      { kind: 'tensor', dtype: '|S0', shape: [2, 0, 3], data: new Uint8Array() },
    ] as const;
    const step = await throughStore({
      actions: contents.map((content) => textAction('', { content })),
      observations: contents.map((content) => textObservation('', { content, isError: content === undefined })),
    });
    expect(step.actions.map(({ content }) => content)).toEqual(contents);
    expect(step.observations.map(({ content }) => content)).toEqual(contents);
    expect(step.observations.map(({ isError }) => isError)).toEqual(contents.map((content) => content === undefined));
  });

  it('FM1: JSON text is kept byte for byte: spaces, order, duplicate keys, numbers that no double can represent', async () => {
    const json = ' {"b":1,\r\n"a" : 1.00, "a":9007199254740993, "u":"\\u00e9\\ud83c\\udf0a\\u0000"}\t';
    const step = await throughStore({
      infoJson: json,
      metadataJson: 'null',
      actions: [textAction('', { content: { kind: 'json', json, mediaType: '' } })],
    });
    expect(step).toMatchObject({ infoJson: json, metadataJson: 'null' });
    expect(step.actions[0]?.content).toEqual({ kind: 'json', json, mediaType: '' });
  });

  it('text is kept to the code point: astral, combining, direction marks, line ends, byte order mark, noncharacters', async () => {
    const text = '\ufeffe\u0301 \u00e9 🌊 👩‍👩‍👧 \u202e\u2028\u2029\r\n\u0001\u001f\u007f\u0085 \uffff \u{10ffff}';
    const step = await throughStore({ actions: [textAction(text, { type: text, name: text, callId: text })] });
    expect(step.actions[0]).toMatchObject({ type: text, name: text, callId: text, content: { text } });
  });

  it('an id of a call of 4 KiB is kept, at the action and at its result', async () => {
    const callId = `call_1__thought__${'Q'.repeat(LIMITS.callIdBytes)}`.slice(0, LIMITS.callIdBytes);
    const step = await throughStore({
      actions: [textAction('', { callId })],
      observations: [textObservation('', { callId })],
    });
    expect([step.actions[0]?.callId, step.observations[0]?.callId]).toEqual([callId, callId]);
  });

  it('times of clients are kept to the nanosecond, from year 1 to 9999', async () => {
    for (const time of [
      -62_135_596_800_000_000_000n,
      -1n,
      0n,
      253_402_300_799_999_999_999n,
      1_795_262_100_123_456_789n,
    ])
      expect(await throughStore({ startTime: time, endTime: time })).toMatchObject({ startTime: time, endTime: time });
    expect(await throughStore({ endTime: 0n })).toMatchObject({ startTime: undefined, endTime: 0n });
  });

  it('a step of almost 1 MiB is returned complete', async () => {
    const text = '🌊é"\\'.repeat(100_000);
    expect((await throughStore({ observations: [textObservation(text)] })).observations[0]?.content).toEqual({
      kind: 'text',
      text,
    });
  });

  it('W9: 16 inline states of 0 bytes, 1 byte and 512 KiB are returned byte for byte', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const large = new Uint8Array(512 * 1024);
    for (let i = 0, x = 7; i < large.length; i += 1) {
      x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
      large[i] = x >>> 24;
    }
    const states = [
      newState(new Uint8Array()),
      newState(new Uint8Array(1)),
      newState(large),
      newState(new Uint8Array(512 * 1024)),
    ];
    const refs = Array.from({ length: 16 }, (_, i) =>
      stateRef(states[i % 4] as (typeof states)[number], `s${String(i).padStart(2, '0')}`),
    );
    await scene.append(made, [makeStep(0n, { states: refs })], { states });
    expect((await scene.steps(made))[0]?.step.states).toEqual(refs);
    for (const { digest, data } of states) {
      const read = await readWhole(scene.store, scene.namespace, digest);
      expect(read.equals(data)).toBe(true);
    }
  });

  it('design 3: the rows are readable in plain SQL', async () => {
    const scene = on.scene();
    const made = await scene.create({ name: 'readable' });
    await scene.append(made, [
      makeStep(0n, {
        actions: [textAction('press ä')],
        observations: [textObservation('ok')],
        reward: 1.5,
        truncated: true,
      }),
    ]);
    const [row] = await on.sql.rows(`select * from steps where namespace = '${scene.namespace}'`);
    expect(String(row?.step_number)).toBe('0');
    expect(row?.reward).toBe(1.5);
    expect([Number(row?.terminated), Number(row?.truncated)]).toEqual([0, 1]);
    expect(row?.commit_time).toBeDefined();
  });
});
