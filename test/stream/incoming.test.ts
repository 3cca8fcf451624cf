import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import {
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { type NewSteps, storedStepDigest, withInlineStates } from '../../src/domain/step_codec/packed_step.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';
import { toAppendFrame } from '../../src/service/trajectory/append.ts';
import { toSingleStep } from '../../src/service/trajectory/single_step.ts';
import { packSteps } from '../../src/service/trajectory/step_in.ts';
import { state, step } from '../service/on_app.ts';
import { type GivenStep, stepMessage } from '../support/given_steps.ts';
import { unpacked } from '../support/packed_steps.ts';
import { sha256, textAction, textObservation } from '../support/steps.ts';

const validator = createRequestValidator([TrajectoryService]);

/** The steps of a frame, checked by its rules and made ready. */
function prepareSteps(steps: readonly GivenStep[]): NewSteps {
  const frame = create(AppendStepsRequestSchema, { steps: steps.map(stepMessage) });
  validator.check(AppendStepsRequestSchema, frame);
  return withInlineStates(packSteps(frame.steps));
}

/** The root of a new trajectory, checked by its rules and made ready. */
function prepareStep(step: GivenStep): NewSteps {
  const request = create(CreateTrajectoryRequestSchema, { root: stepMessage(step) });
  validator.check(CreateTrajectoryRequestSchema, request);
  return toSingleStep(request.root!, 'root');
}

const bytes = (length: number, fill = 7) => new Uint8Array(length).fill(fill);

describe('the preparation of steps for storage', () => {
  it('W9: refers to an inline state by digest, under the name env by default, and passes its bytes once', () => {
    const same = bytes(LIMITS.smallStateBytes);
    const twice = [step(0n, 'a', { states: [state(same)] }), step(1n, 'b', { states: [state(same, { name: 'z' })] })];
    const { steps, states } = prepareSteps(twice);
    expect(steps.map((one) => unpacked(one).states)).toEqual([
      [{ name: 'env', digest: sha256(same), mediaType: '', size: same.length }],
      [{ name: 'z', digest: sha256(same), mediaType: '', size: same.length }],
    ]);
    expect(states).toHaveLength(1);
  });

  it('S1: an inline state of less than 4 KiB stays with each step that has it', () => {
    const small = bytes(LIMITS.smallStateBytes - 1);
    const twice = [step(0n, 'a', { states: [state(small)] }), step(1n, 'b', { states: [state(small)] })];
    const { steps, states } = prepareSteps(twice);
    const ref = { name: 'env', digest: sha256(small), mediaType: '', size: small.length, data: small };
    expect(steps.map((one) => one.states)).toEqual([[ref], [ref]]);
    expect(states).toEqual([]);
  });

  it('FM2: an empty state is a state', () => {
    const { steps } = prepareStep(step(0n, 'a', { states: [state('')] }));
    expect(steps[0]?.states).toMatchObject([{ digest: sha256(''), size: 0, data: new Uint8Array() }]);
  });

  it('W9: sorts states by name; their order in the request makes no difference', () => {
    const states = [state('1', { name: 'b' }), state('2'), state('3', { name: 'a' })];
    const one = prepareStep(step(0n, 'x', { states })).steps[0]!;
    const other = prepareStep(step(0n, 'x', { states: states.toReversed() })).steps[0]!;
    expect(one.states.map(({ name }) => name)).toEqual(['a', 'b', 'env']);
    expect(other.bytes).toEqual(one.bytes);
  });

  it('FM4: data of 16 KiB and more become a state, smaller data stay in the step', () => {
    const large = bytes(LIMITS.contentStateBytes);
    const small = bytes(LIMITS.contentStateBytes - 1);
    const data = (content: Uint8Array) =>
      ({ content: { kind: 'data', data: content, mediaType: 'image/png' } }) as const;
    const { steps, states } = prepareStep(
      step(0n, '', { actions: [textAction('', data(small))], observations: [textObservation('', data(large))] }),
    );
    expect(unpacked(steps[0]!).actions[0]?.content).toMatchObject({ kind: 'data', data: small });
    expect(unpacked(steps[0]!).observations[0]?.content).toEqual({
      kind: 'state',
      digest: sha256(large),
      mediaType: 'image/png',
      size: large.length,
    });
    expect(states.map(({ digest }) => digest)).toEqual([sha256(large)]);
  });

  it('FM4, W6: items of a tensor of 16 KiB and more become a state; dtype and shape stay, and a digest is the same', () => {
    const items = bytes(LIMITS.contentStateBytes);
    const shape = [4, items.length / 16];
    const tensor = (given: { data: Uint8Array } | { digest: string }) =>
      prepareStep(
        step(0n, '', {
          observations: [textObservation('', { content: { kind: 'tensor', dtype: '<f4', shape, ...given } })],
        }),
      );
    const sent = tensor({ data: items });
    const digest = sha256(items);
    const content = { kind: 'tensor', dtype: '<f4', shape, digest };
    expect(unpacked(sent.steps[0]!).observations[0]?.content).toEqual(content);
    expect(sent.states).toEqual([{ digest, data: items }]);
    expect(sent.steps[0]?.contentStates).toEqual([digest]);
    expect(tensor({ digest }).steps[0]?.bytes).toEqual(sent.steps[0]?.bytes);
  });

  it('W6: a log-probability that JSON gives as a double is the float that is stored', () => {
    const json = create(AppendStepsRequestSchema, {
      steps: [stepMessage(step(0n, '', { actions: [textAction('')] }))],
    });
    json.steps[0]!.actions[0]!.logprobs = [-0.1, 0.5];
    expect(unpacked(packSteps(json.steps)[0]!).actions[0]?.logprobs).toEqual([Math.fround(-0.1), 0.5]);
  });

  it('FM4, W6: a replay that has a digest instead of the bytes is the same step', () => {
    const data = bytes(20_000);
    const mediaType = 'image/png';
    const sent = step(0n, '', { observations: [textObservation('', { content: { kind: 'data', data, mediaType } })] });
    const digest = sha256(data);
    const named = step(0n, '', {
      observations: [textObservation('', { content: { kind: 'state', digest, mediaType, size: 0 } })],
    });
    const [one, other] = [prepareStep(sent), prepareStep(named)].map(({ steps }) => storedStepDigest(steps[0]!.bytes));
    expect(one).toBe(other);
  });
});

describe('an invalid step is refused, and the error names the field', () => {
  const LONG_KEY = `${'é'.repeat(64)}x`;
  const withText = (text: string) => step(0n, '', { actions: [textAction(text)] });
  const cases: [string, GivenStep, string][] = [
    ['W11: U+0000 in text', withText('a\0b'), 'actions[0].content.text'],
    ['W11: a lone surrogate', withText('\ud800'), 'actions[0].content.text'],
    [
      'W11: U+0000 in a type',
      step(0n, '', { observations: [textObservation('', { type: '\0' })] }),
      'observations[0].type',
    ],
    ['W11: U+0000 in a call id', step(0n, '', { actions: [textAction('', { callId: '\0' })] }), 'actions[0].call_id'],
    [
      'a call id of 4,097 bytes',
      step(0n, '', { observations: [textObservation('', { callId: 'c'.repeat(LIMITS.callIdBytes + 1) })] }),
      'observations[0].call_id',
    ],
    ['FM1: JSON with a comma too many', step(0n, '', { infoJson: '{"a":1,}' }), 'info_json'],
    ['FM1: JSON with NaN', step(0n, '', { metadataJson: '{"a":NaN}' }), 'metadata_json'],
    [
      'FM1: an empty JSON content',
      step(0n, '', { actions: [textAction('', { content: { kind: 'json', json: '', mediaType: '' } })] }),
      'actions[0].content.json',
    ],
    ['an empty key of a metric', step(0n, '', { metrics: new Map([['', 1]]) }), 'metrics[""]'],
    ['a key of 129 bytes', step(0n, '', { metrics: new Map([[LONG_KEY, 1]]) }), `metrics["${LONG_KEY}"]`],
    ['257 metrics', step(0n, '', { metrics: new Map(Array.from({ length: 257 }, (_, i) => [`${i}`, i])) }), 'metrics'],
    ...(
      [
        ['objects', { dtype: '|O8' }, 'dtype'],
        ['a dtype without byte order', { dtype: 'f4' }, 'dtype'],
        ['the native byte order', { dtype: '=f4' }, 'dtype'],
        ['a unit that there is not', { dtype: '<M8[weeks]' }, 'dtype'],
        ['no dtype', { dtype: '' }, 'dtype'],
        ['a byte less', { data: new Uint8Array(7) }, 'data'],
        ['a byte more', { data: new Uint8Array(9) }, 'data'],
        ['an empty dimension, but a byte', { shape: [2, 0], data: new Uint8Array(1) }, 'data'],
        ['a negative dimension', { shape: [-2] }, 'shape[0]'],
        ['33 dimensions', { shape: new Array(33).fill(1), data: new Uint8Array(4) }, 'shape'],
        ['more than 256 MiB', { shape: [2 ** 26 + 1] }, 'shape'],
        ['a product beyond 2^53', { shape: new Array(32).fill(2 ** 31 - 1) }, 'shape'],
      ] as const
    ).map(([what, tensor, field]): [string, GivenStep, string] => {
      const content = { kind: 'tensor', dtype: '<f4', shape: [2], data: new Uint8Array(8), ...tensor } as const;
      return [
        `FM3: a tensor with ${what}`,
        step(0n, '', { actions: [textAction('', { content })] }),
        `actions[0].content.tensor.${field}`,
      ];
    }),
    [
      'a negative number of kept tokens',
      step(0n, '', { actions: [textAction('', { keptTokens: -1 })] }),
      'actions[0].kept_tokens',
    ],
    [
      'tokens and their state',
      step(0n, '', { actions: [textAction('', { tokenIds: [1], tokenIdsState: 'ab'.repeat(32) })] }),
      'actions[0]',
    ],
    [
      'the tokens of a prompt and their state',
      step(0n, '', { actions: [textAction('', { promptTokenIds: [1], promptTokenIdsState: 'ab'.repeat(32) })] }),
      'actions[0]',
    ],
    [
      'FM1: an upper-case digest of tokens',
      step(0n, '', { actions: [textAction('', { promptTokenIdsState: 'AB'.repeat(32) })] }),
      'actions[0].prompt_token_ids_state',
    ],
    ['a negative number', step(-1n, ''), 'step_number'],
    ['an empty key of a label', step(0n, '', { labels: new Map([['', 'x']]) }), 'labels[""]'],
    ['17 labels', step(0n, '', { labels: new Map(Array.from({ length: 17 }, (_, i) => [`l${i}`, ''])) }), 'labels'],
    ['W11: U+0000 in the value of a label', step(0n, '', { labels: new Map([['a', '\0']]) }), 'labels'],
    ['W9: two states of one name', step(0n, '', { states: [state('1'), state('2', { name: 'env' })] }), 'states'],
    [
      'W9: 257 states',
      step(0n, '', { states: Array.from({ length: 257 }, (_, i) => state('1', { name: `${i}` })) }),
      'states',
    ],
    ['W9: a state without data and digest', step(0n, '', { states: [state(undefined)] }), 'states[0]'],
    [
      'FM1: an upper-case digest',
      step(0n, '', { states: [state(undefined, { digest: 'AB'.repeat(32) })] }),
      'states[0].digest',
    ],
    ['W9: 512 KiB and a byte', step(0n, '', { states: [state(bytes(LIMITS.inlineStateBytes + 1))] }), 'states[0].data'],
    ['W9: a name of 65 bytes', step(0n, '', { states: [state('1', { name: 'n'.repeat(65) })] }), 'states[0].name'],
    [
      'FM1: a content that names no digest',
      step(0n, '', {
        observations: [textObservation('', { content: { kind: 'state', digest: 'x', mediaType: '', size: 0 } })],
      }),
      'observations[0].content.state_digest',
    ],
  ];

  it.each(cases)('%s', (_what, bad, field) => {
    expect(faultOf(() => prepareSteps([step(0n, 'good'), bad]))).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: `steps[1].${field}` }],
    });
    expect(faultOf(() => prepareStep(bad)).violations[0]?.field).toBe(`root.${field}`);
  });

  it('S4, W9: a digest that does not match the bytes', () => {
    const bad = step(0n, '', { states: [state('bytes', { digest: 'ab'.repeat(32) })] });
    expect(faultOf(() => prepareStep(bad))).toMatchObject({
      reason: 'DIGEST_MISMATCH',
      metadata: { expected_digest: 'ab'.repeat(32), digest: sha256('bytes') },
    });
  });

  it('steps at the limits are accepted', () => {
    const metrics = new Map(Array.from({ length: 256 }, (_, i) => [`${i}`.padEnd(128, 'k'), Number.NaN]));
    const states = Array.from({ length: 256 }, (_, i) => state(bytes(i), { name: `${i}`.padEnd(64, 'n') }));
    const largest = step(2n ** 63n - 1n, '🌊', {
      metrics,
      states: [...states.slice(1), state(bytes(LIMITS.inlineStateBytes))],
    });
    expect(prepareStep(largest).steps[0]?.states).toHaveLength(256);
  });
});

describe('the tags of a message', () => {
  const tags = (steps: readonly bigint[], ...of: readonly (readonly [string, bigint | undefined])[]) => {
    const message = {
      steps: steps.map((stepNumber) => ({ stepNumber })),
      tags: of.map(([name, stepNumber]) => (stepNumber === undefined ? { name } : { name, stepNumber })),
    };
    return toAppendFrame(create(AppendStepsRequestSchema, message), validator).tags;
  };

  it('B5: are put in the order of their steps, so that the last step keeps a tag that several have', () => {
    const [zero, one] = [
      { name: 'a', stepNumber: 0n },
      { name: 'a', stepNumber: 1n },
    ];
    expect(tags([0n, 1n], ['a', 1n], ['a', 0n])).toEqual([zero, one]);
  });

  it('B5: a step may have 16', () => {
    const many = (count: number) => Array.from({ length: count }, (_, i): [string, bigint] => [`t${i}`, 0n]);
    expect(tags([0n, 1n], ...many(16), ['t', 1n])).toHaveLength(17);
    expect(faultOf(() => tags([0n, 1n], ...many(17)))).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field: 'tags' }],
    });
  });

  it.each([
    ['of no step of the message', 'tag', 2n, 'tags[0].step_number'],
    ['without a step', 'tag', undefined, 'tags[0].step_number'],
    ['of a negative number', 'tag', -1n, 'tags[0].step_number'],
    ['without a name', '', 0n, 'tags[0].name'],
    ['that begins with a digit', '1', 0n, 'tags[0].name'],
    ['with U+0000', 'a\0', 0n, 'tags[0].name'],
    ['of 129 bytes', 'a'.repeat(129), 0n, 'tags[0].name'],
  ])('B5: one %s is refused by its field', (_what, name, stepNumber, field) => {
    expect(faultOf(() => tags([0n, 1n], [name, stepNumber]))).toMatchObject({
      reason: 'INVALID_REQUEST',
      violations: [{ field }],
    });
  });
});

function faultOf(action: () => unknown): AnabranchError {
  try {
    action();
  } catch (error) {
    if (error instanceof AnabranchError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}
