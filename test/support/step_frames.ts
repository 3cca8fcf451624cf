import {
  create,
  type DescField,
  type DescMessage,
  fromBinary,
  getOption,
  hasOption,
  type MessageShape,
  ScalarType,
  toBinary,
} from '@bufbuild/protobuf';
import { BinaryReader, BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import { field as fieldRules, message as messageRules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import fc from 'fast-check';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendBatchRequestSchema,
  type AppendEntry,
  type AppendStepRequest,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { type NewSteps, PackedFrame } from '../../src/domain/step_codec/packed_step.ts';
import { passFrame } from '../../src/domain/step_codec/pass.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';
import { ValueCount } from '../../src/rpc/value_count.ts';
import { toAppendFrame } from '../../src/service/trajectory/append.ts';
import { toSingleStep } from '../../src/service/trajectory/single_step.ts';
import type { NewEntry } from '../../src/stream/append/entries.ts';
import { anyDouble, anyJson, anyTensor, anyText } from './arbitrary-steps.ts';
import { sha256 } from './steps.ts';

/** Encoded requests with steps for tests: arbitrary ones, changed ones, and what decoding them says. */

const validator = createRequestValidator([TrajectoryService]);
const values = new ValueCount(LIMITS.messageValues);

/**
 * Decodes a frame, and converts it as AppendSteps does. Undefined: it is refused, or is no frame of steps alone. This
 * is what the pass over the bytes must agree with.
 */
export function decodeFrame(frame: Uint8Array): NewSteps | undefined {
  if (values.exceededIn(AppendStepsRequestSchema, frame)) return undefined;
  const message = decoded(AppendStepsRequestSchema, frame);
  if (message === undefined || message.open !== undefined || message.seal !== undefined) return undefined;
  if (message.steps.length === 0) return undefined;
  return accepted(() => {
    // Every step is checked by the validator too, because AppendSteps checks those fully that its own checks suspect.
    validator.check(AppendStepsRequestSchema, message);
    return newSteps(toAppendFrame(message, validator));
  });
}

/** Converts a frame that the pass accepts as AppendSteps does. Undefined: the pass declines it. */
export function passedFrame(frame: Uint8Array): NewSteps | undefined {
  const packed = passFrame(frame);
  return packed && newSteps(toAppendFrame(new PackedFrame(packed, frame.length), validator));
}

/** Decodes an AppendStepRequest, and converts it as AppendStep does. Undefined: it is refused. */
export function decodeStepRequest(request: Uint8Array): NewEntry | undefined {
  if (values.exceededIn(AppendStepRequestSchema, request)) return undefined;
  const message = decoded(AppendStepRequestSchema, request);
  return (
    message &&
    accepted(() => {
      validator.check(AppendStepRequestSchema, message);
      return { ...fenceOf(message), ...newSteps(toSingleStep(message.step!, 'step')), tags: [], seal: undefined };
    })
  );
}

/** Decodes an AppendBatchRequest, and converts its entries as AppendBatch does. Undefined: all entries are refused. */
export function decodeBatch(batch: Uint8Array): (NewEntry | undefined)[] | undefined {
  if (values.exceededIn(AppendBatchRequestSchema, batch)) return undefined;
  const message = decoded(AppendBatchRequestSchema, batch);
  return (
    message &&
    accepted(() => {
      validator.check(AppendBatchRequestSchema, message);
      return message.entries.map((entry) => accepted(() => toEntry(entry)));
    })
  );
}

/** An entry without writer, creation, tags and seal. */
function toEntry(entry: AppendEntry): NewEntry | undefined {
  const { writerId, takeOverEpoch, create: creation, steps, tags, seal } = entry;
  if (writerId !== '' || takeOverEpoch !== undefined || creation !== undefined || seal !== undefined) return undefined;
  if (steps.length === 0 || tags.length > 0) return undefined;
  const frame = create(AppendStepsRequestSchema, { steps });
  return { ...fenceOf(entry), ...newSteps(toAppendFrame(frame, validator)), tags: [], seal: undefined };
}

function fenceOf({ trajectoryId, uid, writerEpoch }: AppendEntry | AppendStepRequest) {
  return { trajectoryId, uid: uid || undefined, writerEpoch };
}

function newSteps({ steps, states }: NewSteps): NewSteps {
  return { steps, states };
}

function decoded<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc> | undefined {
  try {
    return fromBinary(schema, bytes);
  } catch {
    return undefined;
  }
}

function accepted<T>(convert: () => T): T | undefined {
  try {
    return convert();
  } catch (error) {
    if (error instanceof AnabranchError) return undefined;
    throw error;
  }
}

export function encodeFrame(steps: readonly Step[]): Uint8Array {
  return toBinary(AppendStepsRequestSchema, create(AppendStepsRequestSchema, { steps: [...steps] }));
}

type Init = Record<string, unknown>;

/** Set by the server, so clients seldom send them. */
const OUTPUT_ONLY = new Set(['commit_time', 'writer_epoch', 'reward_sum', 'size', 'attach_time', 'pruned_time']);
/** The bytes that a sent digest may name. */
const DATA = new TextEncoder().encode('state');

function anyMessage(schema: DescMessage): fc.Arbitrary<Init> {
  if (schema.typeName === 'google.protobuf.Timestamp') return anyTime;
  if (schema.typeName === 'anabranch.v1.Tensor') return mostly(anyItems, anyFields(schema));
  return anyFields(schema);
}

/** Tensors with as many bytes as they need, or with a digest. */
const anyItems: fc.Arbitrary<Init> = fc.oneof(
  anyTensor,
  anyTensor.map(({ dtype, shape }) => ({ dtype, shape, stateDigest: sha256(DATA) })),
);

function anyFields(schema: DescMessage): fc.Arbitrary<Init> {
  const oneofs = hasOption(schema, messageRules) ? getOption(schema, messageRules).oneof : [];
  const needed = oneofs.filter(({ required }) => required).flatMap(({ fields }) => fields);
  const anyValue = (field: DescField) =>
    needed.includes(field.name) ? mostly(anyField(field), fc.constant(undefined)) : anyOptional(field);
  const values = Object.fromEntries(schema.fields.map((field) => [field.localName, anyValue(field)]));
  const chosen = oneofs.map(({ fields }) => mostly(fc.constantFrom(...fields), fc.constant(undefined)));
  return fc.tuple(fc.record(values), fc.tuple(...chosen)).map(([init, only]) => {
    const left = oneofs.flatMap(({ fields }, i) =>
      only[i] === undefined ? [] : fields.filter((name) => name !== only[i]),
    );
    const entries = schema.fields
      .filter(({ name }) => !left.includes(name))
      .map(({ localName }): [string, unknown] => [localName, init[localName]])
      .filter(([, value]) => value !== undefined);
    return Object.fromEntries(entries);
  });
}

const anyTime: fc.Arbitrary<Init> = fc.record({
  seconds: mostly(
    fc.bigInt(-5n, 2_000_000_000n),
    fc.constantFrom(-62_135_596_801n, 253_402_300_799n, 253_402_300_800n),
  ),
  nanos: mostly(fc.nat(999_999_999), fc.constantFrom(-1, 1_000_000_000)),
});

/** The second one of nine times. */
function mostly<A, B>(often: fc.Arbitrary<A>, seldom: fc.Arbitrary<B>): fc.Arbitrary<A | B> {
  return fc.oneof({ weight: 8, arbitrary: often }, { weight: 1, arbitrary: seldom });
}

function anyOptional(field: DescField): fc.Arbitrary<unknown> {
  const unset = fc.constant(undefined);
  if (OUTPUT_ONLY.has(field.name)) return mostly(mostly(unset, anyField(field)), unset);
  // Three forms of content have none.
  if (field.parent.typeName === 'anabranch.v1.Content' && field.name === 'media_type')
    return mostly(unset, anyField(field));
  return fc.oneof(unset, anyField(field));
}

function anyField(field: DescField): fc.Arbitrary<unknown> {
  switch (field.fieldKind) {
    case 'message':
      return anyMessage(field.message);
    case 'list':
      return fc.array(field.listKind === 'message' ? anyMessage(field.message) : anyScalar(field, field.scalar), {
        maxLength: 3,
      });
    case 'map':
      return fc
        .array(fc.tuple(mostly(anyText, fc.constantFrom('7', '10', '0x')), anyScalar(field, field.scalar)), {
          maxLength: 3,
        })
        .map((entries) => Object.fromEntries(entries));
    case 'scalar':
      return anyScalar(field, field.scalar);
    default:
      throw new Error(`${field} has a kind that steps do not have yet: teach it to this generator`);
  }
}

function anyScalar(field: DescField, type: ScalarType | undefined): fc.Arbitrary<unknown> {
  switch (type) {
    case ScalarType.STRING:
      return anyString(field);
    case ScalarType.BYTES:
      return fc.oneof(
        fc.constant(DATA),
        fc.uint8Array({ maxLength: 40 }),
        fc
          .constantFrom(0, 1, 127, 128, LIMITS.contentStateBytes - 1, LIMITS.contentStateBytes)
          .map((n) => new Uint8Array(n)),
      );
    case ScalarType.DOUBLE:
      return anyDouble;
    case ScalarType.FLOAT:
      return fc.oneof(fc.constantFrom(0, -0, Number.NaN, -Infinity), fc.float());
    case ScalarType.BOOL:
      return fc.boolean();
    case ScalarType.INT32: {
      const any = fc.oneof(fc.constantFrom(0, -1, 127, 128, 2 ** 31 - 1, -(2 ** 31)), fc.integer());
      return field.name === 'kept_tokens' ? mostly(fc.nat(), any) : any;
    }
    case ScalarType.INT64:
      return mostly(
        fc.oneof(fc.constantFrom(0n, 127n, 128n, 2n ** 53n, 2n ** 63n - 1n), fc.bigInt(0n, 999n)),
        fc.constant(-1n),
      );
    default:
      throw new Error(`${field} has a type that steps do not have yet: teach it to this generator`);
  }
}

function anyString(field: DescField): fc.Arbitrary<string> {
  if (field.name.endsWith('json'))
    return mostly(anyJson, fc.constantFrom('', '{', 'NaN', '"\u0000"', '[1,]', '\ufeff1'));
  if (field.name.endsWith('digest') || field.name.endsWith('_state')) return mostly(fc.constant(sha256(DATA)), anyText);
  const rule = hasOption(field, fieldRules) ? getOption(field, fieldRules).type : undefined;
  const most = rule?.case === 'string' ? Number(rule.value.maxBytes) : 100;
  const long = fc
    .tuple(fc.constantFrom('a', 'é', '中', '🌊'), mostly(fc.constant(0), fc.constant(1)))
    .map(([letter, over]) => {
      const width = Buffer.byteLength(letter);
      return letter.repeat(Math.floor(most / width) + over);
    });
  return mostly(fc.oneof(fc.constantFrom('a', 'env', 'tool_call'), anyText, long), fc.constantFrom('a\0', '\0'));
}

/** Steps with any field that the descriptor has. Most, but not all, keep the rules. */
export const anyWireStep: fc.Arbitrary<Step> = anyMessage(StepSchema).map((init) => create(StepSchema, init));

const anyId = mostly(fc.uuid(), fc.constantFrom('', 'x', '0192C7A4-7B1E-7D3C-9B5A-3F1E2D4C5B6A'));
const anyTarget = {
  trajectoryId: anyId,
  uid: fc.oneof(fc.constant(''), anyId),
  writerEpoch: fc.option(mostly(fc.constantFrom(0n, 1n, 2n ** 63n - 1n), fc.constant(-1n)), { nil: undefined }),
};

/** Encoded AppendStepRequests. */
export const anyStepRequest: fc.Arbitrary<Uint8Array> = fc
  .record({ ...anyTarget, step: mostly(anyWireStep, fc.constant(undefined)) })
  .map((init) => toBinary(AppendStepRequestSchema, create(AppendStepRequestSchema, defined(init))));

const anyEntry = fc.record({
  ...anyTarget,
  steps: fc.array(mostly(fc.constant(create(StepSchema, { reward: 1 })), anyWireStep), { maxLength: 3 }),
  writerId: mostly(fc.constant(''), fc.constant('w')),
  seal: mostly(fc.constant(undefined), fc.constant({ status: Status.COMPLETED })),
});

/** Encoded AppendBatchRequests. */
export const anyBatch: fc.Arbitrary<Uint8Array> = fc
  .array(anyEntry, { maxLength: 3 })
  .map((entries) =>
    toBinary(AppendBatchRequestSchema, create(AppendBatchRequestSchema, { entries: entries.map(defined) })),
  );

function defined<T extends object>(init: T): T {
  return Object.fromEntries(Object.entries(init).filter(([, value]) => value !== undefined)) as T;
}

/** Small pseudo-random numbers: mulberry32. */
export class Choices {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** A whole number below `bound`. */
  below(bound: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * bound);
  }
}

/** Returns a message with one to three changes: of bytes anywhere, or of fields with all lengths kept right. */
export function changeMessage(schema: DescMessage, message: Uint8Array, choices: Choices): Uint8Array {
  let changed = message;
  for (let left = 1 + choices.below(3); left > 0; left -= 1) {
    changed = choices.below(3) === 0 ? changeBytes(changed, choices) : changeFields(schema, changed, choices);
  }
  return changed;
}

function changeBytes(frame: Uint8Array, choices: Choices): Uint8Array {
  if (frame.length === 0) return frame;
  const at = choices.below(frame.length);
  const end = Math.min(frame.length, at + 1 + choices.below(20));
  const part = frame.subarray(at, end);
  switch (choices.below(5)) {
    case 0:
      return frame.slice(0, at);
    case 1:
      return join(frame.subarray(0, at), frame.subarray(end));
    case 2:
      return join(frame.subarray(0, end), part, frame.subarray(end));
    case 3: {
      const to = choices.below(frame.length);
      const copy = frame.slice();
      copy.copyWithin(to, at, end);
      return copy;
    }
    default: {
      const copy = frame.slice();
      copy[at]! ^= 1 << choices.below(8);
      return copy;
    }
  }
}

/** A field of a message. The content is one of the wire type, or that of a nested message. */
interface WireField {
  readonly number: number;
  readonly wireType: WireType;
  readonly content: Uint8Array | WireField[];
}

function changeFields(schema: DescMessage, message: Uint8Array, choices: Choices): Uint8Array {
  let fields: WireField[];
  try {
    fields = parseFields(schema, message);
  } catch {
    return changeBytes(message, choices);
  }
  const list = chooseList(fields, choices);
  if (list.length === 0)
    list.push({ number: 1 + choices.below(16), wireType: WireType.Varint, content: new Uint8Array(1) });
  const at = choices.below(list.length);
  const other = choices.below(list.length);
  const chosen = list[at]!;
  switch (choices.below(6)) {
    case 0:
      list.splice(at, 1);
      break;
    case 1:
      list.splice(other, 0, chosen);
      break;
    case 2:
      list[at] = list[other]!;
      list[other] = chosen;
      break;
    case 3:
      list[at] = { ...chosen, number: 1 + choices.below(16) };
      break;
    default:
      if (chosen.content instanceof Uint8Array) list[at] = { ...chosen, content: changeContent(chosen, choices) };
  }
  return encodeFields(fields);
}

function changeContent({ wireType, content }: WireField, choices: Choices): Uint8Array {
  const bytes = content as Uint8Array;
  if (wireType === WireType.LengthDelimited)
    return choices.below(6) === 0 ? new Uint8Array() : changeBytes(bytes, choices);
  if (wireType !== WireType.Varint) return bytes.map((byte) => (choices.below(3) === 0 ? choices.below(256) : byte));
  if (choices.below(2) === 0) return new Uint8Array([choices.below(128)]);
  // Longer than needed, by one byte.
  return join(bytes.subarray(0, -1), [bytes.at(-1)! | 0x80, choices.below(2)]);
}

function chooseList(fields: WireField[], choices: Choices): WireField[] {
  let list = fields;
  while (choices.below(5) > 0) {
    const nested = list.map(({ content }) => content).filter((content) => Array.isArray(content));
    if (nested.length === 0) break;
    list = nested[choices.below(nested.length)]!;
  }
  return list;
}

function parseFields(schema: DescMessage | undefined, bytes: Uint8Array): WireField[] {
  const reader = new BinaryReader(bytes);
  const fields: WireField[] = [];
  while (reader.pos < bytes.length) {
    const [number, wireType] = reader.tag();
    if (wireType !== WireType.LengthDelimited) {
      fields.push({ number, wireType, content: reader.skip(wireType, number) });
      continue;
    }
    const field = schema?.fields.find((each) => each.number === number);
    const content = reader.bytes();
    const isNested = field?.fieldKind === 'map' || field?.message !== undefined;
    fields.push({ number, wireType, content: isNested ? parseFields(field.message, content) : content });
  }
  return fields;
}

function encodeFields(fields: readonly WireField[]): Uint8Array {
  const writer = new BinaryWriter();
  for (const { number, wireType, content } of fields) {
    writer.tag(number, wireType);
    const bytes = content instanceof Uint8Array ? content : encodeFields(content);
    if (wireType === WireType.LengthDelimited) writer.bytes(bytes);
    else writer.raw(bytes);
  }
  return writer.finish();
}

function join(...parts: readonly (Uint8Array | readonly number[])[]): Uint8Array {
  return new Uint8Array(parts.flatMap((part) => [...part]));
}
