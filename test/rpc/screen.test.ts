import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { AppendStepsRequestSchema, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';
import { SUSPECT, screenStep } from '../../src/service/trajectory/screen.ts';
import { dose } from '../support/dose.ts';

const validator = createRequestValidator([TrajectoryService]);

function keepsRules(step: Step): boolean {
  try {
    validator.check(AppendStepsRequestSchema, create(AppendStepsRequestSchema, { steps: [step] }));
    return true;
  } catch {
    return false;
  }
}

/** Text about as long as a limit, in characters of one to four bytes. */
const about = (bound: number) =>
  fc
    .tuple(fc.constantFrom('a', 'é', '中', '🌊'), fc.integer({ min: -2, max: 2 }), fc.constantFrom(1, 2, 3, 4))
    .map(([letter, off, width]) => letter.repeat(Math.max(0, Math.floor(bound / width) + off)));
const text = (bound: number) => fc.oneof({ weight: 20, arbitrary: fc.constant('x') }, about(bound));
const mediaType = fc.oneof(
  { weight: 30, arbitrary: text(128) },
  fc.constantFrom('a/b; c="d"', 'a\r\nb', '\t', '\u0085'),
);
const maybe = <T>(value: fc.Arbitrary<T>, weight = 4) =>
  fc.oneof({ weight, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: value });
const bytes = fc.constantFrom(0, 1, 524288, 524289).map((size) => new Uint8Array(size));

/** Keys that are undefined are left out: absent is not empty. */
const record = (model: Record<string, fc.Arbitrary<unknown>>) =>
  fc.record(model).map((made) => Object.fromEntries(Object.entries(made).filter(([, value]) => value !== undefined)));

const tensor = record({
  dtype: fc.oneof(fc.constant('<f4'), about(16)),
  shape: fc.oneof(
    fc.array(fc.integer({ min: -1, max: 2 ** 31 - 1 }), { maxLength: 3 }),
    fc.constantFrom(31, 32, 33).map((n) => new Array(n).fill(1)),
  ),
  data: maybe(fc.constant(new Uint8Array(3)), 1),
  stateDigest: maybe(about(64)),
});
const content = fc.oneof(
  fc.constant({ text: 'hello' }),
  record({
    text: maybe(text(4)),
    json: maybe(fc.constant('1')),
    data: maybe(fc.constant(new Uint8Array(3))),
    stateDigest: maybe(about(64)),
    uri: maybe(about(2048)),
    tensor: maybe(tensor, 2),
    mediaType,
  }),
);
const action = record({
  type: text(LIMITS.typeBytes),
  name: text(LIMITS.actionNameBytes),
  callId: text(LIMITS.callIdBytes),
  content: maybe(content, 1),
  tokenIds: fc.array(fc.integer()),
  promptTokenIds: fc.array(fc.integer(), { maxLength: 3 }),
  keptTokens: maybe(fc.integer()),
  tokenIdsState: maybe(about(64)),
  promptTokenIdsState: maybe(about(64)),
});
const observation = record({
  type: text(LIMITS.typeBytes),
  callId: text(LIMITS.callIdBytes),
  content: maybe(content, 1),
});
const state = record({ name: text(64), data: maybe(bytes), digest: text(64), mediaType });
const many = <T>(item: fc.Arbitrary<T>, bound: number) =>
  fc.oneof(
    { weight: 8, arbitrary: fc.array(item, { maxLength: 3 }) },
    {
      weight: 1,
      arbitrary: fc.tuple(item, fc.integer({ min: 0, max: 1 })).map(([one, off]) => new Array(bound + off).fill(one)),
    },
  );
const step: fc.Arbitrary<Step> = record({
  stepNumber: fc.bigInt({ min: -2n, max: 2n ** 63n - 1n }),
  actions: many(action, LIMITS.stepParts),
  observations: many(observation, LIMITS.stepParts),
  states: many(state, LIMITS.statesPerStep),
  reward: maybe(fc.double()),
  infoJson: fc.string(),
  metadataJson: fc.string(),
  metrics: fc.oneof(
    { weight: 8, arbitrary: fc.constant({}) },
    about(LIMITS.metricKeyBytes).map((key) => ({ [key]: 1 })),
    fc
      .integer({ min: 255, max: 258 })
      .map((n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`m${i}`, i]))),
  ),
  labels: maybe(
    fc.oneof(
      fc.array(fc.tuple(about(64), about(256)), { maxLength: 2 }).map((pairs) => Object.fromEntries(pairs)),
      fc
        .integer({ min: 15, max: 18 })
        .map((n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`l${i}`, 'v']))),
    ),
  ),
  startTime: maybe(fc.constant({ seconds: 1n, nanos: 999_999_999 })),
}).map((init) => create(StepSchema, init));

describe('the quick check of a step', () => {
  it('accepts no step that violates the rules of the proto, and returns a lower bound of its size', () => {
    let passed = 0;
    let refused = 0;
    fc.assert(
      fc.property(step, (each) => {
        const size = screenStep(each);
        const valid = keepsRules(each);
        if (valid) passed += 1;
        else refused += 1;
        expect(size === SUSPECT || valid, 'a refused step is suspect').toBe(true);
        if (size !== SUSPECT) expect(size).toBeGreaterThanOrEqual(toBinary(StepSchema, each).length);
      }),
      { numRuns: dose(150, 1000) },
    );
    expect(Math.min(passed, refused), 'both kinds were tried').toBeGreaterThan(0);
  });

  it('rejects no valid step: the validator runs for the others only', () => {
    fc.assert(
      fc.property(step, (each) => {
        if (keepsRules(each)) expect(screenStep(each)).not.toBe(SUSPECT);
      }),
      { numRuns: dose(150, 1000) },
    );
  });

  it('treats decoded steps like constructed ones', () => {
    const made = create(StepSchema, { stepNumber: 3n, actions: [{ content: { text: '' } }], metrics: { a: 1 } });
    expect(screenStep(fromBinary(StepSchema, toBinary(StepSchema, made)))).toBe(screenStep(made));
  });
});
