import { create, fromBinary } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { describe, expect, it } from 'vitest';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { DEFAULT_LIMITS } from '../../src/client/limits.ts';
import { encodeStep as encodeWithin, type StepInit } from '../../src/client/step.ts';

const encodeStep = (init: StepInit, stepNumber: bigint) => encodeWithin(init, stepNumber, DEFAULT_LIMITS);

/** The step as the server decodes it. */
function sent(init: StepInit, stepNumber = 0n): Step {
  const frame = new Uint8Array([0x12, ...encodeStep(init, stepNumber).bytes]);
  return fromBinary(AppendStepsRequestSchema, frame).steps[0]!;
}

const MAX = 1024 * 1024 - 4096;
/** A step of exactly this many bytes, consisting of text. */
const textOf = (size: number): StepInit => {
  const overhead = (length: number) => sizeOf({ observations: [{ content: { text: 'x'.repeat(length) } }] }) - length;
  const length = size - overhead(size - 100);
  return { observations: [{ content: { text: 'x'.repeat(length) } }] };
};
const sizeOf = (init: StepInit) => encodeStep(init, 0n).bytes.byteLength - 3;

describe('encodeStep', () => {
  it('W11: missing, zero, NaN and infinite rewards stay distinct', () => {
    expect(sent({}).reward).toBeUndefined();
    for (const reward of [0, -0, Number.NaN, Number.POSITIVE_INFINITY]) expect(sent({ reward }).reward).toBe(reward);
  });

  it('FM1: info and metadata are written as JSON; strings are kept as they are', () => {
    const step = sent({ info: { b: [1, null], a: 'ü' }, metadataJson: '{ "x" : 1.0 }' });
    expect(step.infoJson).toBe('{"b":[1,null],"a":"ü"}');
    expect(step.metadataJson).toBe('{ "x" : 1.0 }');
    expect(sent({ info: null }).infoJson).toBe('null');
  });

  it('W9: states are keyed by name, with or without a media type, inline or by digest, or as in the proto', () => {
    const data = new Uint8Array([1]);
    const digest = 'a'.repeat(64);
    const states = { env: data, agent: { data, mediaType: 'application/json' }, old: { digest } };
    const fields = ({ name, data, digest, mediaType }: Step['states'][number]) => [name, data, digest, mediaType];
    expect(sent({ states }).states.map(fields)).toEqual([
      ['env', data, '', ''],
      ['agent', data, '', 'application/json'],
      ['old', undefined, digest, ''],
    ]);
    expect(sent({ states: [{ data }] }).states.map(fields)).toEqual([['', data, '', '']]);
    expect(sent({ states: { env: new Uint8Array() } }).states[0]?.data).toEqual(new Uint8Array());
  });

  it('times may be Dates', () => {
    const step = sent({
      startTime: new Date(1500),
      endTime: timestampFromMs(2001),
    });
    expect(step.startTime).toMatchObject({ seconds: 1n, nanos: 500_000_000 });
    expect(step.endTime).toMatchObject({ seconds: 2n, nanos: 1_000_000 });
  });

  it('a step read from a server can be passed unchanged; fields set by the server are removed', () => {
    const read = create(StepSchema, { stepNumber: 4n, reward: 2, writerEpoch: 9n, rewardSum: 7, terminated: true });
    expect(sent(read, 4n)).toEqual(create(StepSchema, { stepNumber: 4n, reward: 2, terminated: true }));
  });

  it.each<[string, StepInit, string]>([
    ['another number', { stepNumber: 3n }, 'stepNumber is 3: expected 0, the next step; you can leave it unset'],
    ['both forms of a field', { info: 1, infoJson: '1' }, 'info and infoJson are both set: set only one'],
    ['a value that is not JSON', { info: () => 1 }, 'info cannot be encoded as JSON: it is a function'],
    ['a bigint in JSON', { metadata: { n: 1n } }, 'metadata cannot be encoded as JSON: '],
    ['an invalid Date', { endTime: new Date(Number.NaN) }, 'endTime is an invalid Date'],
  ])('refuses %s and says what was expected', (_, init, said) => {
    expect(() => encodeStep(init, 0n)).toThrow(said);
  });

  it('W3: a step of 1 MiB - 4 KiB is accepted, one byte more is refused', () => {
    const largest = textOf(MAX);
    expect(sizeOf(largest)).toBe(MAX);
    const over = () => encodeStep({ ...largest, terminated: true }, 0n);
    expect(over).toThrow(/has 1044482 bytes when encoded: expected at most 1044480/);
    expect(reasonOf(new Error('x'))).toBeUndefined();
  });

  it('W9: bytes are uploaded separately, the largest first, only until the step fits', () => {
    const kib = (n: number) => new Uint8Array(n * 1024).fill(n);
    const init = { states: { a: kib(500), b: kib(400), c: kib(300) }, actions: [{ content: { data: kib(10) } }] };
    const { bytes, uploads } = encodeStep(init, 0n);
    expect(uploads.map((upload) => upload.bytes.byteLength)).toEqual([500 * 1024]);
    expect(bytes.byteLength).toBeLessThan(MAX);
    expect(encodeStep({ states: { a: kib(512) } }, 0n).uploads).toEqual([]);
    expect(encodeStep({ states: { a: new Uint8Array(512 * 1024 + 1) } }, 0n).uploads).toHaveLength(1);
  });

  it("uploading separately does not change the caller's own messages", () => {
    const large = new Uint8Array(600 * 1024);
    const read = create(StepSchema, {
      states: [{ name: 'env', data: large }],
      observations: [{ content: { data: large } }],
      actions: [{ content: { tensor: { dtype: '|u1', shape: [large.length], data: large } } }],
    });
    expect(encodeStep(read, 0n).uploads).toHaveLength(3);
    expect(read.actions[0]?.content?.tensor?.data).toBe(large);
    expect(read.states[0]?.data).toBe(large);
    expect(read.observations[0]?.content?.data).toBe(large);
  });
});
