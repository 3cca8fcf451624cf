import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StepSchema, type Step as WireStep } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Content, StateRef, Step, StoredStep } from '../../src/domain/step.ts';
import { DamagedStep } from '../../src/domain/step_codec/damaged_step.ts';
import { forwardStep, readReward } from '../../src/domain/step_codec/forward.ts';
import { bodyOf as bodyOfEncoded, frameBytes, StepFrames } from '../../src/domain/step_codec/frames.ts';
import { storedStepDigest } from '../../src/domain/step_codec/packed_step.ts';
import { readStep } from '../../src/domain/step_codec/read.ts';
import { withStateSizes } from '../../src/domain/step_codec/small_states.ts';
import { WireWriter } from '../../src/domain/step_codec/wire_writer.ts';
import { writeCommit, writeRewardSum, writeStep, writeStoredStep } from '../../src/domain/step_codec/write.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { fromStoredStep } from '../../src/service/trajectory/step_out.ts';
import { anyDouble, anyInstant, anyStep, anyText } from '../support/arbitrary-steps.ts';
import { fieldsOf, noteFields } from '../support/message_fields.ts';
import { STEP_VECTORS, stepOf } from '../support/step_vectors.ts';
import { makeStep, textAction, textObservation } from '../support/steps.ts';

const digest = fc.stringMatching(/^[0-9a-f]{64}$/);
const size = fc.oneof(fc.constantFrom(0, 127, 128, 2 ** 31, 2 ** 32, 2 ** 53 - 1), fc.nat());
const prunedTime = fc.option(anyInstant, { nil: undefined });
const stateContent: fc.Arbitrary<Content> = fc.oneof(
  fc.record({ kind: fc.constant('state' as const), digest, mediaType: anyText, size, prunedTime }),
  fc.record({
    kind: fc.constant('tensor' as const),
    dtype: fc.constantFrom('<f4', '|S9999999'),
    shape: fc.array(fc.nat(), { maxLength: 3 }),
    digest,
  }),
);
const attachTime = fc.option(anyInstant, { nil: undefined });
const state: fc.Arbitrary<StateRef> = fc.record({
  name: anyText,
  digest,
  mediaType: anyText,
  size,
  prunedTime,
  attachTime,
});
/** Lengths around those whose varint grows by a byte. */
const longText = fc.constantFrom(42, 43, 127, 128, 16_383, 16_384).map((length) => 'ü'.repeat(length));

const storedStep: fc.Arbitrary<StoredStep> = fc
  .record({
    step: anyStep,
    states: fc.array(state, { maxLength: 3 }),
    content: fc.option(stateContent, { nil: undefined }),
    tokens: fc.record({
      tokenIdsState: fc.option(digest, { nil: undefined }),
      promptTokenIdsState: fc.option(digest, { nil: undefined }),
    }),
    infoJson: fc.option(longText, { nil: undefined }),
    commitTime: anyInstant,
    writerEpoch: fc.bigInt(0n, 2n ** 63n - 1n),
    rewardSum: anyDouble,
  })
  .map(({ step, states, content, tokens, infoJson, ...stored }) => ({
    ...step,
    ...stored,
    states,
    infoJson: infoJson ?? step.infoJson,
    actions: content === undefined ? step.actions : [...step.actions, textAction('', { content, ...tokens })],
  }));

/** Small, so that growing is part of the test. */
const newWriter = () => new WireWriter(8);

describe('the codec of steps', () => {
  it('writes the bytes that protobuf-es writes, with what the server sets at the end', () => {
    const out = newWriter();
    fc.assert(
      fc.property(storedStep, (step) => {
        writeStoredStep(out, step);
        const { commitTime, writerEpoch, rewardSum } = fromStoredStep(step);
        const set = create(StepSchema, { ...(commitTime && { commitTime }), writerEpoch, rewardSum });
        expect(hex(out.take())).toBe(hex(toBinary(StepSchema, messageOf(step))) + hex(toBinary(StepSchema, set)));
      }),
    );
  });

  it('writes every field of a step that the descriptor has, so that none is forgotten', () => {
    const seen = new Set<string>();
    for (const step of fc.sample(storedStep, 500)) noteFields(StepSchema, fromStoredStep(step), seen);
    const missing = [...fieldsOf(StepSchema)].filter((field) => !seen.has(field));
    // The bytes of a state are never part of a stored step.
    expect(missing).toEqual(['anabranch.v1.StepState.data']);
  });

  it('leaves out what the server sets, if only what the client sent is written', () => {
    const out = newWriter();
    fc.assert(
      fc.property(storedStep, (step) => {
        writeStep(out, step);
        expect(hex(out.take())).toBe(hex(toBinary(StepSchema, messageOf(step))));
      }),
    );
  });

  it('writes nested messages with their length, whatever it is', () => {
    const out = newWriter();
    for (const length of [0, 1, 125, 126, 127, 128, 16_380, 16_384, 2_097_152]) {
      const step = makeStep(1n, {
        observations: [{ type: '', callId: '', isError: false, content: { kind: 'text', text: 'x'.repeat(length) } }],
      });
      const stored = { ...step, commitTime: 0n, writerEpoch: 0n, rewardSum: 0 };
      const begun = out.begin(0x12);
      writeStoredStep(out, stored);
      out.end(begun);
      const plain = toBinary(StepSchema, fromStoredStep(stored));
      expect(out.take().length).toBe(1 + varint(plain.length) + plain.length);
    }
  });

  it('grows at any length, without losing anything', () => {
    const step = makeStep(1n, {
      observations: [{ type: 'a', callId: 'b', isError: true, content: { kind: 'text', text: 'c' } }],
      metrics: new Map([['d', 1]]),
    });
    const bytes = bytesOf(step);
    for (let capacity = 0; capacity < 2 * bytes.length; capacity += 1) {
      const out = new WireWriter(capacity);
      writeStep(out, step);
      expect(hex(out.take())).toBe(hex(bytes));
    }
  });

  it('takes a copy, so that the next step does not change it', () => {
    const out = newWriter();
    const [first, second] = [1n, 2n].map((number) => {
      writeStep(out, makeStep(number, {}));
      return out.take();
    });
    expect([hex(first!), hex(second!), out.length]).toEqual(['0801', '0802', 0]);
  });
});

describe('the codec of steps, reading', () => {
  it('reads what was written, anywhere in a body', () => {
    fc.assert(
      fc.property(storedStep, fc.nat(3), (stored, offset) => {
        const step = sentOf(stored);
        const bytes = bytesOf(step);
        const body = Buffer.concat([Buffer.alloc(offset, 0xff), bytes, Buffer.alloc(3, 0xff)]);
        expect(readStep(body, offset, offset + bytes.length)).toEqual(step);
      }),
    );
  });

  it('reads what protobuf-es writes, and protobuf-es what it writes', () => {
    fc.assert(
      fc.property(storedStep, (stored) => {
        const step = sentOf(stored);
        const bytes = toBinary(StepSchema, messageOf(step));
        expect(readStep(bytes, 0, bytes.length)).toEqual(step);
        expect(fromBinary(StepSchema, bytesOf(step))).toEqual(fromBinary(StepSchema, bytes));
      }),
    );
  });

  it('leaves out what BASIC leaves out, and nothing else', () => {
    fc.assert(
      fc.property(storedStep, (stored) => {
        const step = sentOf(stored);
        const bytes = bytesOf(step);
        const basic = { ...step, actions: [], observations: [], infoJson: '', metadataJson: '' };
        expect(readStep(bytes, 0, bytes.length, 'BASIC')).toEqual(basic);
      }),
    );
  });

  it.each(STEP_VECTORS)('golden vector: $name', ({ step, storedHex, digest }) => {
    const bytes = Buffer.from(storedHex, 'hex');
    expect(hex(bytesOf(stepOf(step)))).toBe(storedHex);
    expect(readStep(bytes, 0, bytes.length)).toEqual(stepOf(step));
    expect(storedStepDigest(bytes)).toBe(digest);
  });

  it('W6: computes the same digest from stored bytes as from the step', () => {
    fc.assert(
      fc.property(storedStep, (stored) => {
        const bytes = bytesOf(sentOf(stored));
        expect(storedStepDigest(bytes)).toBe(stepDigest(stored));
      }),
    );
  });

  it('forwards stored bytes as the message that it would write, in both views', () => {
    const [forwarded, written] = [newWriter(), newWriter()];
    fc.assert(
      fc.property(storedStep, fc.nat(3), fc.constantFrom('BASIC', 'FULL'), (stored, offset, view) => {
        const bytes = bytesOf(sentOf(stored));
        const body = Buffer.concat([Buffer.alloc(offset, 0xff), bytes, Buffer.alloc(3, 0xff)]);
        const [from, to] = [offset, offset + bytes.length];
        forwardStep(forwarded, body, { from, to }, view);
        writeCommit(forwarded, stored);
        writeRewardSum(forwarded, stored.rewardSum);
        writeStoredStep(written, { ...stored, ...readStep(body, from, to, view) });
        expect(hex(forwarded.take())).toBe(hex(written.take()));
        expect(readReward(body, { from, to }, stored.stepNumber)).toBe(stored.reward);
        expect(() => readReward(body, { from, to }, stored.stepNumber + 1n)).toThrow(DamagedStep);
      }),
    );
  });

  it('forwards no step whose parts do not end where they should', () => {
    const body = Buffer.from('08013a05', 'hex');
    expect(() => forwardStep(newWriter(), body, { from: 0, to: 4 }, 'BASIC')).toThrow(DamagedStep);
    expect(() => readReward(Buffer.from('08011205', 'hex'), { from: 0, to: 4 }, 1n)).toThrow(DamagedStep);
  });

  it('adds the sizes of states that were named by digest, and changes no other', () => {
    const [known, unknown, sent] = ['a', 'b', 'c'].map((letter) => letter.repeat(64)) as [string, string, string];
    const state = (digest: string, size: number) => ({ name: digest.slice(0, 1), digest, mediaType: '', size });
    const content = (digest: string, size: number): Content => ({
      kind: 'state',
      digest,
      mediaType: 'image/png',
      size,
    });
    const withSizes = (sizes: readonly number[]) =>
      makeStep(1n, {
        actions: [textAction('go'), textAction('', { content: content(known, sizes[0]!) })],
        observations: [textObservation('', { content: content(unknown, sizes[1]!) })],
        states: [state(known, sizes[0]!), state(unknown, sizes[1]!), state(sent, sizes[2]!)],
      });
    const sizes = new Map([
      [known, 300],
      [sent, 7],
    ]);
    const bytes = withStateSizes(newWriter(), bytesOf(withSizes([0, 0, 5])), sizes);
    expect(readStep(bytes, 0, bytes.length)).toEqual(withSizes([300, 0, 5]));
  });

  it('W11: stores one NaN, whichever the client sent', () => {
    const odd = new Uint8Array(Buffer.from('080121010000000000f0ff', 'hex'));
    const oddFloat = new Uint8Array(Buffer.from('12063204010080ff', 'hex'));
    const stored = [odd, oddFloat].map((bytes) => hex(bytesOf(readStep(bytes, 0, bytes.length))));
    expect(stored).toEqual(['080121000000000000f87f', '120632040000c07f']);
  });

  it('goes through the steps of a body', () => {
    fc.assert(
      fc.property(fc.array(storedStep, { maxLength: 4 }), (stored) => {
        const steps = stored.map(sentOf);
        expect(stepsIn(bodyOf(steps))).toEqual(steps);
      }),
    );
  });

  it('counts the bytes that a step takes in a body, whatever the size of its length', () => {
    for (const length of [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]) {
      const step = new Uint8Array(length);
      expect(bodyOfEncoded([step])).toHaveLength(frameBytes(step));
      expect(bodyOfEncoded([step, step])).toHaveLength(2 * frameBytes(step));
    }
  });

  it('reads what protobuf-es reads, or throws DamagedStep, if a step is cut off anywhere', () => {
    fc.assert(
      fc.property(storedStep, (stored) => {
        const bytes = bytesOf(sentOf(stored));
        for (let end = 0; end < bytes.length; end += bytes.length < 1000 ? 1 : 97) {
          readOrDamaged(() => readStep(bytes, 0, end, 'BASIC'));
          expectDamagedOrEqual(bytes.subarray(0, end));
        }
      }),
      { numRuns: 30 },
    );
  });

  it('reads what protobuf-es reads, or throws DamagedStep, if bytes are changed', () => {
    fc.assert(
      fc.property(
        storedStep,
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 3 }),
        (stored, flips) => {
          const bytes = bytesOf(sentOf(stored));
          for (const [at, value] of flips) if (bytes.length > 0) bytes[at % bytes.length] = value;
          expectDamagedOrEqual(bytes);
        },
      ),
      { numRuns: 2000 },
    );
  });

  it('throws DamagedStep, if anything, for a body that is cut off or changed', () => {
    fc.assert(
      fc.property(fc.array(storedStep, { minLength: 1, maxLength: 3 }), fc.nat(), fc.nat(255), (stored, at, value) => {
        const body = bodyOf(stored.map(sentOf));
        expect(readOrDamaged(() => stepsIn(body.subarray(0, body.length - 1)))).toBeUndefined();
        body[at % body.length] = value;
        readOrDamaged(() => stepsIn(body));
      }),
    );
  });

  it.each([
    ['a field out of order', '10011a00'],
    ['an unknown field', '0801800101'],
    ['what the server sets', '08016a00'],
    ['a field twice', '08010802'],
    ['a varint that is longer than needed', '088100'],
    ['a varint without an end', '08ffffffffffffffffffff01'],
    ['a varint of more than 64 bits', '08ffffffffffffffffff02'],
    ['a flag that is not 1', '08012802'],
    ['a length beyond the end', '08013a05'],
    ['a length beyond 32 bits', '08013affffffffff7f'],
    ['text that is not UTF-8', '08013a02c328'],
    ['a key twice', `08014a0c0a01611100000000000000004a0c0a0161110000000000000000`],
    ['a label twice', `0801${'8201060a01611201 62'.repeat(2)}`],
    ['a label without a value', '0801 8201030a0161'],
    ['an unknown field whose tag begins like that of labels', '0801 8202060a0161120162'],
    ['a metric without a key', '08014a09110000000000000000'],
    ['nanoseconds of more than a second', '08015206108094ebdc03'],
    ['a year beyond 9999', '0801520708ffffffffff7f'],
    ['a digest of three characters', '080162051a03616263'],
    ['a content without a form', '0801120222 00'],
    ['a content of two forms', '0801120822060a01611201 61'],
    ['a tensor without items', '08011209220742050a033c6634'],
    ['a tensor of two forms of items', '0801120d220b42090a033c66341a002200'],
    ['a media type of a text', '08011208220 60a01613201 61'],
    ['a token of more than 32 bits', '080112082a06ffffffffff01'],
    ['a negative count of kept tokens', '0801120b40ffffffffffffffffff01'],
    ['a count of kept tokens beyond 32 bits', '08011206408080808010'],
    ['a part of a float', '080112053203000000'],
  ])('refuses %s', (_, digits) => {
    const bytes = Buffer.from(digits.replaceAll(' ', ''), 'hex');
    expect(() => readStep(bytes, 0, bytes.length)).toThrow(DamagedStep);
  });

  it('refuses a range outside of the bytes', () => {
    const bytes = bytesOf(makeStep(1n));
    for (const [from, to] of [
      [-1, 1],
      [0, 3],
      [2, 1],
      [Number.NaN, 1],
    ] as const) {
      expect(() => readStep(bytes, from, to)).toThrow(DamagedStep);
    }
  });
});

/** What the client sent of a stored step. */
function sentOf({ commitTime: _, writerEpoch: __, rewardSum: ___, ...step }: StoredStep): Step {
  return step;
}

function bytesOf(step: Step): Uint8Array {
  const out = new WireWriter(1024);
  writeStep(out, step);
  return out.take();
}

function bodyOf(steps: readonly Step[]): Uint8Array {
  return bodyOfEncoded(steps.map(bytesOf));
}

function stepsIn(body: Uint8Array): Step[] {
  const steps: Step[] = [];
  for (const frames = new StepFrames(body); frames.next(); ) steps.push(readStep(body, frames.from, frames.to));
  return steps;
}

/** Undefined: the bytes are damaged. Other errors are thrown. */
function readOrDamaged<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if (error instanceof DamagedStep) return undefined;
    throw error;
  }
}

/** The bytes are damaged, or protobuf-es reads the same from them. */
function expectDamagedOrEqual(bytes: Uint8Array): void {
  const step = readOrDamaged(() => readStep(bytes, 0, bytes.length));
  if (step !== undefined) expect(messageOf(step)).toEqual(fromBinary(StepSchema, bytes));
}

function messageOf(step: Step): WireStep {
  const message = fromStoredStep({ ...step, commitTime: 0n, writerEpoch: 0n, rewardSum: 0 });
  delete message.commitTime;
  return message;
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

function varint(value: number): number {
  return value < 128 ? 1 : 1 + varint(Math.floor(value / 128));
}
