import { create, type DescMessage, fromBinary, type Message, toBinary, toJsonString } from '@bufbuild/protobuf';
import { isReflectMessage, type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CreateRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { LogMetricsRequestSchema, SummarizeRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { ValueCount } from '../../src/rpc/value_count.ts';

const SCHEMAS: readonly DescMessage[] = [
  AppendStepsRequestSchema,
  CreateRolloutsRequestSchema,
  LogMetricsRequestSchema,
  SummarizeRequestSchema,
];

/** The number of decoded values: messages, map entries, elements of lists of messages and texts, unknown fields. */
function decodedValues(message: ReflectMessage): number {
  let count = message.getUnknown()?.length ?? 0;
  for (const field of message.fields) {
    if (!message.isSet(field)) continue;
    const value: unknown = message.get(field);
    if (field.fieldKind === 'message' && isReflectMessage(value)) count += 1 + decodedValues(value);
    if (field.fieldKind === 'map' || (field.fieldKind === 'list' && field.listKind === 'message')) {
      for (const each of value as Iterable<unknown>) {
        const inner = Array.isArray(each) ? (each as unknown[])[1] : each;
        count += 1 + (isReflectMessage(inner) ? decodedValues(inner) : 0);
      }
    }
    if (field.fieldKind === 'list' && field.listKind === 'scalar' && !field.packed)
      count += [...(value as Iterable<unknown>)].length;
  }
  return count;
}

/** Records of known and unknown fields, of right and wrong wire types, nested in each other. */
const { records } = fc.letrec<{ records: number[] }>((tie) => ({
  records: fc
    .array(
      fc.tuple(
        fc.integer({ min: 1, max: 16 }),
        fc.constantFrom(0, 1, 2, 2, 2, 2, 3, 5),
        fc.oneof(
          { depthSize: 'small' },
          fc.constant<number[]>([]),
          fc.array(fc.nat(255), { maxLength: 9 }),
          tie('records'),
        ),
      ),
      { maxLength: 8 },
    )
    .map((parts) =>
      parts.flatMap(([number, wire, inner]) => [...varint((number << 3) | wire), ...varint(inner.length), ...inner]),
    ),
}));

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)];
}

describe('T13: the number of values in a message is known before it is decoded', () => {
  it('every decoded value was counted, whatever the bytes', () => {
    let compared = 0;
    fc.assert(
      fc.property(fc.constantFrom(...SCHEMAS), records, (schema, parts) => {
        const bytes = Uint8Array.from(parts);
        let message: Message;
        try {
          message = fromBinary(schema, bytes);
        } catch {
          return;
        }
        const values = decodedValues(reflect(schema, message));
        if (values === 0) return;
        compared += 1;
        expect(new ValueCount(values - 1).exceededIn(schema, bytes)).toBe(true);
      }),
      { numRuns: 5_000 },
    );
    expect(compared).toBeGreaterThan(500);
  });

  it('the largest message that a client may send is below the limit', () => {
    const limit = new ValueCount(LIMITS.messageValues);
    const points = Array.from({ length: LIMITS.metricPoints }, (_, i) => ({
      key: 'loss',
      metricStep: BigInt(i),
      value: i / 3,
    }));
    const log = create(LogMetricsRequestSchema, { points });
    expect(limit.exceededIn(LogMetricsRequestSchema, toBinary(LogMetricsRequestSchema, log))).toBe(false);
    expect(limit.exceededInJson(Buffer.from(toJsonString(LogMetricsRequestSchema, log)))).toBe(false);
    const labels = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`label ${i}`, 'v']));
    const rollouts = Array.from({ length: 1000 }, (_, i) => ({
      groupNumber: 0n,
      number: BigInt(i),
      taskId: 't',
      labels,
    }));
    const made = toBinary(CreateRolloutsRequestSchema, create(CreateRolloutsRequestSchema, { rollouts }));
    expect(limit.exceededIn(CreateRolloutsRequestSchema, made)).toBe(false);
    const tokenIds = Array.from({ length: 300_000 }, () => 7);
    const thought = create(AppendStepsRequestSchema, { steps: [{ actions: [{ tokenIds }] }] });
    expect(limit.exceededIn(AppendStepsRequestSchema, toBinary(AppendStepsRequestSchema, thought))).toBe(false);
  });

  it('packed numbers count if each is checked by a rule', () => {
    const bytes = toBinary(SummarizeRequestSchema, create(SummarizeRequestSchema, { passAt: Array(100).fill(1) }));
    expect(new ValueCount(100).exceededIn(SummarizeRequestSchema, bytes)).toBe(false);
    expect(new ValueCount(99).exceededIn(SummarizeRequestSchema, bytes)).toBe(true);
  });

  it('characters within strings of JSON do not count', () => {
    const text = Buffer.from(JSON.stringify({ name: '[,{,"\\[,{,'.repeat(20) }));
    expect(new ValueCount(1).exceededInJson(text)).toBe(false);
    expect(new ValueCount(3).exceededInJson(Buffer.from('{"labels":[1,2,3]}'))).toBe(true);
  });
});
