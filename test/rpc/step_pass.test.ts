import { create, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendBatchRequestSchema,
  type AppendEntrySchema,
  AppendStepsRequestSchema,
  SealSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { storedStepDigest } from '../../src/domain/step_codec/packed_step.ts';
import { passBatch, passFrame } from '../../src/domain/step_codec/pass.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { packSteps } from '../../src/service/trajectory/step_in.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { dose } from '../support/dose.ts';
import { stepMessage } from '../support/given_steps.ts';
import { fieldsOf, noteFields } from '../support/message_fields.ts';
import { unpacked } from '../support/packed_steps.ts';
import { anyWireStep, encodeFrame } from '../support/step_frames.ts';
import { agreedBatch, agreedPass, passChanged, REQUESTS } from '../support/step_pass.ts';
import { sha256 } from '../support/steps.ts';

type EntryInit = MessageInitShape<typeof AppendEntrySchema>;
type Init = Parameters<typeof create<typeof StepSchema>>[1];

const frameOf = (...steps: readonly Init[]) => encodeFrame(steps.map((step) => create(StepSchema, step)));

describe('the pass over the bytes of steps', () => {
  it('W6: packs what clients usually send as decoding does, with the same digest', () => {
    const state = fc.record({
      name: fc.constantFrom('', 'a', 'zü', '🌊', '\uffff'),
      data: fc.option(fc.uint8Array({ maxLength: 300 }), { nil: undefined }),
      mediaType: fc.constantFrom('', 'text/plain'),
    });
    const states = fc.uniqueArray(state, { maxLength: 4, selector: ({ name }) => name });
    fc.assert(
      fc.property(fc.array(fc.tuple(anyStep, states), { minLength: 1, maxLength: 4 }), (given) => {
        const steps = given.map(([step, named]) => {
          const metrics = new Map([...step.metrics].filter(([key]) => !/^[0-9]+$/.test(key)));
          const labels = new Map([...step.labels].filter(([key]) => !/^[0-9]+$/.test(key)));
          const sent = named.map((each) => ({ ...each, digest: each.data === undefined ? sha256('other') : '' }));
          const { commitTime: _, ...message } = stepMessage({ ...step, metrics, labels, states: sent });
          return message;
        });
        const packed = agreedPass(encodeFrame(steps));
        const digests = packed?.map(({ bytes }) => storedStepDigest(bytes));
        const created = steps.map((step) => create(StepSchema, step));
        expect(digests).toEqual(packSteps(created).map((each) => stepDigest(unpacked(each))));
      }),
    );
  });

  it('accepts only what decoding accepts, and every field that clients set', () => {
    const seen = new Set<string>();
    let declined = 0;
    fc.assert(
      fc.property(fc.array(anyWireStep, { minLength: 1, maxLength: 2 }), (steps) => {
        const frame = encodeFrame(steps);
        if (agreedPass(frame) === undefined) declined += 1;
        else for (const step of fromBinary(AppendStepsRequestSchema, frame).steps) noteFields(StepSchema, step, seen);
      }),
      // A few thousand random steps may miss a field. Those of this seed have each.
      dose({ numRuns: 1500, seed: 1 }, { numRuns: 12_000 }),
    );
    const leftToDecoding = [...fieldsOf(StepSchema)].filter((field) => !seen.has(field));
    expect(leftToDecoding.sort()).toEqual(
      // What the server sets. Clients that send it do so by mistake.
      [
        'Content.pruned_time',
        'Content.size',
        'Step.commit_time',
        'Step.reward_sum',
        'Step.writer_epoch',
        'StepState.attach_time',
        'StepState.pruned_time',
        'StepState.size',
      ].map((field) => `anabranch.v1.${field}`),
    );
    expect(declined).toBeGreaterThan(1000);
  });

  it.each(Object.entries(REQUESTS))(
    'accepts only what decoding accepts of requests of %s that are cut, swapped, repeated or flipped',
    (_name, requests) => {
      const seed = Number(process.env.FC_SEED ?? Date.now() % 2 ** 31);
      const changes = dose(2_500, 20_000);
      expect(passChanged(requests, changes, seed), `accepted, seed ${seed}`).toBeGreaterThan(changes / 50);
    },
  );

  it.each(Object.entries(REQUESTS))(
    'W8, W14: accepts only what decoding accepts of requests of %s',
    (_name, { any, isAccepted }) => {
      const requests = fc.sample(any, dose(1_000, 10_000));
      const accepted = requests.filter(isAccepted).length;
      expect(accepted).toBeGreaterThan(requests.length / 50);
      expect(accepted).toBeLessThan(requests.length);
    },
  );

  it('W14: an entry that reaches beyond its end does not change the next one', () => {
    const message = Buffer.from(
      '0a610a2461623337326232652d363830322d386339302d393635322d663035306534323764313562922464643964633030342d31' +
        '6133652d353862302d613264372d39333338643263643332346318ffffffffffffffff7f3a0921000000000000f03f0a400a2463' +
        '363233616133372d376563332d386662342d623563622d31346562616462616232396318003a0921000000000000f03f3a003a09' +
        '21000000000000f03f',
      'hex',
    );
    expect(passBatch(message)?.entries.map((entry) => entry?.steps.length)).toEqual([undefined, 3]);
    expect(agreedBatch(message)).toBe(false);
  });

  it('W14: declines single entries of AppendBatch, and a message with too many entries, steps or values', () => {
    const trajectoryId = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
    const batch = (...entries: readonly EntryInit[]) =>
      toBinary(
        AppendBatchRequestSchema,
        create(AppendBatchRequestSchema, { entries: entries.map((entry) => ({ trajectoryId, ...entry })) }),
      );
    const steps = (count: number, init: Init = {}) => list(count, create(StepSchema, init));
    const good = { steps: steps(1) };
    const sealed = { ...good, seal: create(SealSchema, { status: Status.FAILED }) };
    expect(passBatch(batch(good, sealed, good))?.entries.map((entry) => entry?.steps.length)).toEqual([
      1,
      undefined,
      1,
    ]);
    expect(agreedBatch(batch(...list(LIMITS.batchEntries, good)))).toBe(true);
    expect(passBatch(batch(...list(LIMITS.batchEntries + 1, good)))).toBeUndefined();
    expect(passBatch(batch({ steps: steps(8192) }))).toBeDefined();
    expect(passBatch(batch({ steps: steps(8192) }, good))).toBeUndefined();
    const full = { steps: steps(1, { observations: list(1024, {}) }) };
    expect(agreedBatch(batch(...list(127, full)))).toBe(true);
    expect(passBatch(batch(...list(128, full)))).toBeUndefined();
  });

  it('leaves out flags that are sent though they are false, as some encoders do', () => {
    const step = (flags: string) => Buffer.from(`0805${flags}3a027b7d`, 'hex');
    const frame = (flags: string) => new Uint8Array(Buffer.concat([Buffer.of(0x12, step(flags).length), step(flags)]));
    for (const [sent, stored] of [
      ['28003000', ''],
      ['28013000', '2801'],
      ['28003001', '3001'],
    ] as const) {
      expect(agreedPass(frame(sent))?.map(({ bytes }) => Buffer.from(bytes))).toEqual([step(stored)]);
    }
    expect(passFrame(frame('2802'))).toBeUndefined();
  });

  const text = (bytes: number) => 'x'.repeat(bytes);
  const entries = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`m${i}`, i]));
  const labels = (count: number) => Object.fromEntries(Object.entries(entries(count)).map(([key, i]) => [key, `${i}`]));
  const list = <T>(count: number, item: T) => new Array<T>(count).fill(item);
  it.each<[string, number, (size: number) => Init]>([
    ['actions', LIMITS.stepParts, (size) => ({ actions: list(size, {}) })],
    ['observations', LIMITS.stepParts, (size) => ({ observations: list(size, {}) })],
    ['metrics', LIMITS.metrics, (size) => ({ metrics: entries(size) })],
    [
      'states',
      LIMITS.statesPerStep,
      (size) => ({ states: list(size, 0).map((_, i) => ({ name: `s${i}`, digest: sha256('') })) }),
    ],
    ['labels', LIMITS.stepLabels, (size) => ({ labels: labels(size) })],
    ['bytes of the key of a label', LIMITS.labelKeyBytes, (size) => ({ labels: { [text(size)]: '' } })],
    ['bytes of the value of a label', LIMITS.labelValueBytes, (size) => ({ labels: { label: text(size) } })],
    ['bytes of a type', LIMITS.typeBytes, (size) => ({ actions: [{ type: text(size) }] })],
    ['bytes of a name', LIMITS.actionNameBytes, (size) => ({ actions: [{ name: text(size) }] })],
    ['bytes of a call_id', LIMITS.callIdBytes, (size) => ({ actions: [{ callId: text(size) }] })],
    [
      'bytes of a call_id of an observation',
      LIMITS.callIdBytes,
      (size) => ({ observations: [{ callId: text(size) }] }),
    ],
    ['bytes of a type of an observation', LIMITS.typeBytes, (size) => ({ observations: [{ type: text(size) }] })],
    [
      'bytes of a media type',
      LIMITS.mediaTypeBytes,
      (size) => ({ observations: [{ content: { uri: '', mediaType: text(size) } }] }),
    ],
    ['bytes of a URI', LIMITS.uriBytes, (size) => ({ observations: [{ content: { uri: text(size) } }] })],
    ['bytes of a metric key', LIMITS.metricKeyBytes, (size) => ({ metrics: { [text(size)]: 1 } })],
    [
      'bytes of the name of a state',
      LIMITS.stateNameBytes,
      (size) => ({ states: [{ name: text(size), digest: sha256('') }] }),
    ],
    ['bytes of an inline state', LIMITS.inlineStateBytes, (size) => ({ states: [{ data: new Uint8Array(size) }] })],
    // One byte more is stored as a state, by the other path.
    [
      'bytes of data',
      LIMITS.contentStateBytes - 1,
      (size) => ({ observations: [{ content: { data: new Uint8Array(size) } }] }),
    ],
    [
      'dimensions of a tensor',
      LIMITS.tensorDimensions,
      (size) => ({
        actions: [{ content: { tensor: { dtype: '|u1', shape: list(size, 1), data: new Uint8Array(1) } } }],
      }),
    ],
    [
      'bytes of a tensor',
      LIMITS.contentStateBytes - 1,
      (size) => ({ actions: [{ content: { tensor: { dtype: '|i1', shape: [size], data: new Uint8Array(size) } } }] }),
    ],
    [
      'bytes of a tensor that a state has',
      LIMITS.stateBytes,
      (size) => ({ actions: [{ content: { tensor: { dtype: '|i1', shape: [size], stateDigest: sha256('') } } }] }),
    ],
    ['bytes of a step', LIMITS.stepBytes - 12, (size) => ({ observations: [{ content: { text: text(size) } }] })],
    [
      'bytes of a step with a state of unknown size',
      LIMITS.stepBytes - 88,
      (size) => ({
        observations: [{ content: { text: text(size) } }, { content: { stateDigest: sha256('') } }],
      }),
    ],
  ])('accepts as many %s as decoding: %i', (_, most, step) => {
    expect(agreedPass(frameOf(step(most)))).toBeDefined();
    expect(passFrame(frameOf(step(most + 1)))).toBeUndefined();
  });

  it('accepts as many values of a frame as decoding', () => {
    const withParts = (count: number) => ({ observations: list(count, {}) });
    const full = list(127, withParts(1024));
    const left = LIMITS.messageValues - 127 * 1025;
    expect(agreedPass(frameOf(...full, withParts(left - 1)))).toBeDefined();
    expect(passFrame(frameOf(...full, withParts(left)))).toBeUndefined();
    const tensor = { dtype: '|u1', shape: list(32, 1), data: new Uint8Array(1) };
    const withTensors = (tensors: number, others: number) => ({
      observations: [...list(tensors, { content: { tensor } }), ...list(others, {})],
    });
    const most = list(3, withTensors(1024, 0));
    const [tensors, others] = [672, LIMITS.messageValues - 3 * (1 + 1024 * 35) - (1 + 672 * 35)];
    expect(agreedPass(frameOf(...most, withTensors(tensors, others)))).toBeDefined();
    expect(passFrame(frameOf(...most, withTensors(tensors, others + 1)))).toBeUndefined();
  });
});
