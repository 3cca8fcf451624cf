import fc from 'fast-check';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Action, Content, Observation, Step } from '../../src/domain/step.ts';
import { CHARACTER } from './character.ts';
import { makeStep } from './steps.ts';

/**
 * Arbitrary steps: values that codecs, databases and JSON easily lose are frequent. States are left to tests that store
 * them.
 */

const ODD_NUMBERS = [0, -0, Number.NaN, Infinity, -Infinity, 5e-324, 1.7976931348623157e308, 0.1, 2 ** 53 + 2];
const ODD_TEXTS = [
  '',
  'e\u0301',
  '\u00e9',
  '🌊',
  '\u202e\u2028',
  '"\\\'\n\t\r',
  '\\u0000',
  '$1 ? :x %s',
  "'); DROP TABLE step;--",
  '\ufeff',
];

/** Text that proto3 can represent and the service accepts: well-formed, without U+0000. */
export const anyText: fc.Arbitrary<string> = fc.oneof(
  fc.constantFrom(...ODD_TEXTS),
  fc.string({ unit: CHARACTER, maxLength: 20 }).filter((text) => !text.includes('\0')),
);

export const anyDouble: fc.Arbitrary<number> = fc.oneof(fc.constantFrom(...ODD_NUMBERS), fc.double());

/** Strict JSON text as clients may write it: spaces, numbers that no double can represent, duplicate keys. */
export const anyJson: fc.Arbitrary<string> = fc.oneof(
  fc.constantFrom(
    '{}',
    ' {"b": 1,\n"a":1.0, "a":2}',
    '9007199254740993',
    '"\\u00e9\\ud83c\\udf0a"',
    '[1e400]',
    'null',
    '"\\u0000"',
  ),
  fc.json({ maxDepth: 2 }).filter((text) => text.isWellFormed()),
);

const bytes = fc.uint8Array({ maxLength: 40 });

/** Types of items, with their bytes. */
const DTYPES = {
  '|b1': 1,
  '|i1': 1,
  '|u1': 1,
  '<i4': 4,
  '>i8': 8,
  '<f4': 4,
  '<f8': 8,
  '<c16': 16,
  '<M8[ns]': 8,
  '>m8[25s]': 8,
  '|S3': 3,
  '<U2': 8,
  '|S0': 0,
};

/** Tensors with as many bytes as their dtype and shape say. */
export const anyTensor = fc
  .tuple(
    fc.constantFrom(...Object.entries(DTYPES)),
    fc.array(fc.nat(3), { maxLength: 3 }),
    fc.uint8Array({ minLength: 8, maxLength: 8 }),
  )
  .map(([[dtype, size], shape, items]) => {
    const bytes = shape.reduce((product, length) => product * length, size);
    return { dtype, shape, data: Uint8Array.from({ length: bytes }, (_, i) => items[i % items.length]!) };
  });
const mediaType = fc.constantFrom('', 'image/png', 'text/plain; charset=utf-8');
const content: fc.Arbitrary<Content> = fc.oneof(
  anyText.map((text): Content => ({ kind: 'text', text })),
  fc.record({ kind: fc.constant('json' as const), json: anyJson, mediaType }),
  fc.record({ kind: fc.constant('data' as const), data: bytes, mediaType }),
  fc.record({ kind: fc.constant('uri' as const), uri: anyText, mediaType }),
  anyTensor.map((tensor): Content => ({ kind: 'tensor', ...tensor })),
);

const anyTokens = fc.array(fc.oneof(fc.constantFrom(0, -1, 2 ** 31 - 1, -(2 ** 31)), fc.nat()), { maxLength: 4 });

const action: fc.Arbitrary<Action> = fc.record({
  type: anyText,
  name: anyText,
  callId: anyText,
  content: fc.option(content, { nil: undefined }),
  tokenIds: anyTokens,
  promptTokenIds: anyTokens,
  keptTokens: fc.option(fc.oneof(fc.constantFrom(0, 2 ** 31 - 1), fc.nat()), { nil: undefined }),
  tokenIdsState: fc.constant(undefined),
  promptTokenIdsState: fc.constant(undefined),
  logprobs: fc.array(fc.oneof(fc.constantFrom(0, -0, Number.NaN, -Infinity), fc.float()), { maxLength: 4 }),
});

const observation: fc.Arbitrary<Observation> = fc.record({
  type: anyText,
  callId: anyText,
  isError: fc.boolean(),
  content: fc.option(content, { nil: undefined }),
});

/** Protobuf's range of time: years 1 to 9999, to the nanosecond. */
export const anyInstant: fc.Arbitrary<bigint> = fc.oneof(
  fc.constantFrom(0n, -1n, -62_135_596_800_000_000_000n, 253_402_300_799_999_999_999n, 1_795_262_100_123_456_789n),
  fc.bigInt(-62_135_596_800_000_000_000n, 253_402_300_799_999_999_999n),
);

const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });

const fields: fc.Arbitrary<Partial<Step>> = fc.record({
  actions: fc.array(action, { maxLength: 3 }),
  observations: fc.array(observation, { maxLength: 3 }),
  reward: maybe(anyDouble),
  terminated: fc.boolean(),
  truncated: fc.boolean(),
  infoJson: fc.oneof(fc.constant(''), anyJson),
  metadataJson: fc.oneof(fc.constant(''), anyJson),
  metrics: fc
    .array(
      fc.tuple(
        anyText.filter((key) => key !== ''),
        anyDouble,
      ),
      { maxLength: 4 },
    )
    .map((entries) => new Map(entries)),
  labels: fc
    .array(
      fc.tuple(
        anyText.filter((key) => key !== '' && Buffer.byteLength(key) <= LIMITS.labelKeyBytes),
        anyText,
      ),
      { maxLength: 3 },
    )
    .map((entries) => new Map(entries)),
  startTime: maybe(anyInstant),
  endTime: maybe(anyInstant),
});

export const anyStep: fc.Arbitrary<Step> = fc
  .tuple(fc.bigInt(0n, 2n ** 63n - 1n), fields)
  .map(([stepNumber, rest]) => makeStep(stepNumber, rest));
