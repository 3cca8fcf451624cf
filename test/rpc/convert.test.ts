import { create, fromBinary, toBinary, type UnknownField } from '@bufbuild/protobuf';
import { WireType } from '@bufbuild/protobuf/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { toSingleStep } from '../../src/service/trajectory/single_step.ts';
import { packSteps, toOneStep } from '../../src/service/trajectory/step_in.ts';
import { fromStoredStep } from '../../src/service/trajectory/step_out.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { unpacked } from '../support/packed_steps.ts';
import { makeStep, sha256 } from '../support/steps.ts';

function refusal(act: () => unknown): AnabranchError {
  try {
    act();
  } catch (error) {
    if (error instanceof AnabranchError) return error;
    throw error;
  }
  throw new Error('was expected to be refused');
}

const UNKNOWN = [{ no: 4711, wireType: WireType.Varint, data: new Uint8Array([1]) }];

describe('the conversion of steps', () => {
  it('O1, W6: returns steps unchanged, through the bytes', () => {
    fc.assert(
      fc.property(anyStep, fc.bigInt({ min: 0n, max: 2n ** 60n }), (step, commitTime) => {
        const stored = { ...step, commitTime, writerEpoch: 3n, rewardSum: -0 };
        const wire = fromBinary(StepSchema, toBinary(StepSchema, fromStoredStep(stored)));
        const { states: _, ...rest } = step;
        expect(unpacked(toOneStep(wire, 'step').steps[0]!)).toMatchObject(rest);
        expect(wire).toMatchObject({ writerEpoch: 3n, rewardSum: -0 });
      }),
    );
  });

  it('W6: accepts any name of a metric, also one that objects have as a property', () => {
    const metrics = new Map([
      ['__proto__', 1],
      ['constructor', 2],
    ]);
    const stored = { ...makeStep(0n, { metrics }), commitTime: 0n, writerEpoch: 0n, rewardSum: 0 };
    const wire = fromBinary(StepSchema, toBinary(StepSchema, fromStoredStep(stored)));
    expect([...toOneStep(wire, 'step').steps[0]!.metrics]).toEqual([...metrics]);
  });

  it('FM2: unset is not zero, and empty is not unset', () => {
    const wire = create(StepSchema, {
      states: [{ data: new Uint8Array() }, { name: 'put before', digest: sha256('x') }],
      actions: [{ content: { text: '' } }, {}],
    });
    const { steps, states } = toOneStep(fromBinary(StepSchema, toBinary(StepSchema, wire)), 'step');
    const step = steps[0]!;
    expect(step.reward).toBeUndefined();
    expect(step.states.map(({ digest }) => digest)).toEqual([sha256(''), sha256('x')]);
    expect(step.states.map(({ data }) => data?.length)).toEqual([0, undefined]);
    expect(states).toEqual([]);
    expect(unpacked(step).actions.map(({ content }) => content)).toEqual([{ kind: 'text', text: '' }, undefined]);
  });

  it.each<[string, (step: Step) => { $unknown?: UnknownField[] | undefined }]>([
    ['steps[2]', (step) => step],
    ['steps[2].actions[1]', (step) => step.actions[1]!],
    ['steps[2].actions[1].content', (step) => step.actions[1]!.content!],
    ['steps[2].observations[0]', (step) => step.observations[0]!],
    ['steps[2].observations[0].content', (step) => step.observations[0]!.content!],
    ['steps[2].states[0]', (step) => step.states[0]!],
    ['steps[2].start_time', (step) => step.startTime!],
    ['steps[2].end_time', (step) => step.endTime!],
  ])('FM5: a field that the server does not know is refused in %s', (field, within) => {
    const made = create(StepSchema, {
      actions: [{}, { content: { text: 'a' } }],
      observations: [{ content: { text: 'b' } }],
      states: [{ data: new Uint8Array(1) }],
      startTime: { seconds: 1n },
      endTime: { seconds: 2n },
    });
    const good = create(StepSchema);
    expect(unpacked(packSteps([good, good, made])[2]!).actions).toHaveLength(2);
    within(made).$unknown = UNKNOWN;
    const decoded = fromBinary(StepSchema, toBinary(StepSchema, made));
    const error = refusal(() => packSteps([good, good, decoded]));
    expect(error.reason).toBe('INVALID_REQUEST');
    expect(error.violations[0]?.field).toBe(field);
    expect(error.message).toContain('4711');
  });

  it.each([
    { seconds: 253402300800n, nanos: 0 },
    { seconds: -62135596801n, nanos: 0 },
    { seconds: 0n, nanos: -1 },
    { seconds: 0n, nanos: 1_000_000_000 },
  ])('an invalid time is refused: $seconds s, $nanos ns', (startTime) => {
    const error = refusal(() => toOneStep(create(StepSchema, { startTime }), 'root'));
    expect(error.violations[0]?.field).toBe('root.start_time');
  });

  it('W3: a step may have 1 MiB - 4 KiB, and not one byte more', () => {
    const withText = (length: number) =>
      create(StepSchema, { observations: [{ content: { text: 'x'.repeat(length) } }] });
    const spare = toBinary(StepSchema, withText(LIMITS.stepBytes - 100)).length - (LIMITS.stepBytes - 100);
    const full = withText(LIMITS.stepBytes - spare);
    expect(toBinary(StepSchema, full).length).toBe(LIMITS.stepBytes);
    expect(unpacked(toSingleStep(full, 'step').steps[0]!).observations).toHaveLength(1);
    const error = refusal(() => toSingleStep(withText(LIMITS.stepBytes - spare + 1), 'step'));
    expect(error.message).toContain(`${LIMITS.stepBytes + 1} bytes`);
  });
});
