import { clone, type DescField, type DescMessage, type Message, type ScalarType } from '@bufbuild/protobuf';
import { type ReflectList, type ReflectMap, type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';

/** A field of a request with text or an int64, and how to set another value. */
interface Spot {
  readonly path: string;
  /** Of its message, such as `anabranch.v1.Step.labels`. */
  readonly field: string;
  readonly scalar: ScalarType;
  readonly value: unknown;
  put(value: unknown): void;
}

/** Fields that the server sets and ignores in requests. */
const SERVER_SET = new Set([
  'anabranch.v1.Step.writer_epoch',
  'anabranch.v1.Content.size',
  'anabranch.v1.StepState.size',
]);

function* spotsOf(message: ReflectMessage, prefix = ''): Generator<Spot> {
  for (const field of message.fields) {
    if (!message.isSet(field) || SERVER_SET.has(`${message.desc.typeName}.${field.name}`)) continue;
    yield* spotsOfField(message, field, `${prefix}${field.name}`);
  }
}

function* spotsOfField(message: ReflectMessage, field: DescField, path: string): Generator<Spot> {
  const value: unknown = message.get(field);
  const name = `${message.desc.typeName}.${field.name}`;
  switch (field.fieldKind) {
    case 'scalar':
      yield { path, field: name, value, scalar: field.scalar, put: (other) => message.set(field, other as never) };
      break;
    case 'message':
      yield* spotsOf(value as ReflectMessage, `${path}.`);
      break;
    case 'list':
      for (const [i, item] of [...(value as ReflectList)].entries()) {
        const at = `${path}[${i}]`;
        if (field.listKind === 'message') yield* spotsOf(item as ReflectMessage, `${at}.`);
        if (field.listKind !== 'scalar') continue;
        yield {
          path: at,
          field: name,
          value: item,
          scalar: field.scalar,
          put: (other) => (value as ReflectList).set(i, other as never),
        };
      }
      break;
    case 'map':
      for (const [key, item] of value as ReflectMap) {
        const map = value as ReflectMap;
        const rename = (other: unknown) => {
          map.delete(key);
          map.set(other as never, item as never);
        };
        yield { path, field: name, value: key, scalar: field.mapKey, put: rename };
        if (field.mapKind === 'message') yield* spotsOf(item as ReflectMessage, `${path}[${JSON.stringify(key)}].`);
        if (field.mapKind !== 'scalar') continue;
        yield { path, field: name, value: item, scalar: field.scalar, put: (other) => map.set(key, other as never) };
      }
  }
}

/** Paths of the fields that have a value, as text. */
export function pathsWith(schema: DescMessage, message: Message, value: string): string[] {
  const spots = [...spotsOf(reflect(schema, message))];
  return spots.filter((spot) => String(spot.value) === value).map(({ path }) => path);
}

/** The frames, once for each such field, with another value there. */
export function* variants(
  schema: DescMessage,
  frames: readonly Message[],
  wanted: ScalarType,
  value: unknown,
): Generator<{ path: string; frames: Message[] }> {
  for (const [f, frame] of frames.entries()) {
    for (const [s, { scalar }] of [...spotsOf(reflect(schema, frame))].entries()) {
      if (scalar !== wanted) continue;
      const changed = clone(schema, frame);
      const spot = [...spotsOf(reflect(schema, changed))][s]!;
      spot.put(value);
      yield { path: spot.path, frames: frames.map((other, i) => (i === f ? changed : other)) };
    }
  }
}

/** A text of a request that differs from that of a like request. */
export interface Difference {
  /** Where it is; it can be in several fields. */
  readonly fields: readonly string[];
  readonly ours: string;
  readonly theirs: string;
}

/** The texts in which two requests of one shape differ. */
export function differences(schema: DescMessage, ours: readonly Message[], theirs: readonly Message[]): Difference[] {
  const found = new Map<string, Difference>();
  for (const [f, frame] of ours.entries()) {
    const others = [...spotsOf(reflect(schema, theirs[f]!))];
    for (const [s, { path, field, value }] of [...spotsOf(reflect(schema, frame))].entries()) {
      const other = others[s];
      if (other?.field !== field) throw new Error(`${schema}: ${path} is not at one place in both requests`);
      if (typeof value !== 'string' || value === other.value) continue;
      const fields = [...(found.get(value)?.fields ?? []), field];
      found.set(value, { fields, ours: value, theirs: String(other.value) });
    }
  }
  return [...found.values()];
}

/** Copies of the frames with other values of their fields. */
export function withValues(
  schema: DescMessage,
  frames: readonly Message[],
  valueFor: (spot: Pick<Spot, 'value' | 'field' | 'scalar'>) => unknown,
): Message[] {
  return frames.map((frame) => {
    const copy = clone(schema, frame);
    for (const spot of [...spotsOf(reflect(schema, copy))]) spot.put(valueFor(spot));
    return copy;
  });
}

/** Copies of the frames with other texts. */
export function withTexts(
  schema: DescMessage,
  frames: readonly Message[],
  textOf: (text: string, field: string) => string,
): Message[] {
  return withValues(schema, frames, ({ value, field }) => (typeof value === 'string' ? textOf(value, field) : value));
}
