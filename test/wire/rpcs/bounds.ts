import { clone, type DescField, type DescMessage, getOption, hasOption, type Message } from '@bufbuild/protobuf';
import { type ReflectList, type ReflectMap, type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import type { Duration } from '@bufbuild/protobuf/wkt';
import { type FieldRules, field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';

/** A field of a request, and how to set a value that its rules in the proto do not allow. */
interface Break {
  readonly path: string;
  put(): void;
}

/** The first values that the rules of a scalar or an enum do not allow. */
function valuesBeyond(type: FieldRules['type'] | undefined): unknown[] {
  switch (type?.case) {
    case 'string': {
      const { maxBytes, minBytes, len, wellKnown } = type.value;
      const tooLong = [maxBytes, len].filter((most) => most > 0n).map((most) => 'x'.repeat(Number(most) + 1));
      return [...tooLong, ...(minBytes > 0n ? [''] : []), ...(wellKnown.case === 'uuid' ? ['x'] : [])];
    }
    case 'bytes':
      return type.value.maxLen > 0n ? [new Uint8Array(Number(type.value.maxLen) + 1)] : [];
    case 'int32':
    case 'int64': {
      const { greaterThan, lessThan } = type.value;
      const [least, most] = [greaterThan.value, lessThan.value];
      const one = type.case === 'int64' ? 1n : 1;
      const beyond = (bound: number | bigint | undefined, by: number | bigint) =>
        bound === undefined ? [] : [(bound as number) + (by as number)];
      return [...beyond(least, -one), ...beyond(most, one)];
    }
    case 'enum':
      return type.value.definedOnly ? [9999] : [];
    default:
      return [];
  }
}

function* breaksOf(message: ReflectMessage, prefix = ''): Generator<Break> {
  for (const field of message.fields) {
    if (message.isSet(field)) yield* breaksOfField(message, field, `${prefix}${field.name}`);
  }
}

function* breaksOfField(message: ReflectMessage, field: DescField, path: string): Generator<Break> {
  const type = hasOption(field, rules) ? getOption(field, rules).type : undefined;
  const value: unknown = message.get(field);
  switch (field.fieldKind) {
    case 'scalar':
    case 'enum':
      for (const other of valuesBeyond(type)) yield { path, put: () => message.set(field, other as never) };
      break;
    case 'message':
      if (type?.case === 'duration') yield* breaksOfDuration((value as ReflectMessage).message as Duration, type, path);
      else yield* breaksOf(value as ReflectMessage, `${path}.`);
      break;
    case 'list': {
      const list = value as ReflectList;
      const most = type?.case === 'repeated' ? Number(type.value.maxItems) : 0;
      const another = () => (field.listKind === 'message' ? reflect(field.message) : list.get(0));
      const put = () => {
        while (list.size <= most) list.add(another() as never);
      };
      if (most > 0) yield { path, put };
      if (type?.case === 'repeated' && type.value.minItems > 0n) yield { path, put: () => list.clear() };
      const items = type?.case === 'repeated' ? type.value.items?.type : undefined;
      for (const other of valuesBeyond(items)) yield { path: `${path}[0]`, put: () => list.set(0, other as never) };
      if (field.listKind === 'message') yield* breaksOf(list.get(0) as ReflectMessage, `${path}[0].`);
      break;
    }
    case 'map': {
      const map = value as ReflectMap;
      const [key, item] = [...map][0]!;
      const most = type?.case === 'map' ? Number(type.value.maxPairs) : 0;
      const put = () => {
        for (let i = 0; map.size <= most; i += 1) map.set(`key ${i}`, item as never);
      };
      if (most > 0) yield { path, put };
      const of = type?.case === 'map' ? type.value : undefined;
      for (const other of valuesBeyond(of?.keys?.type))
        yield { path, put: () => map.set(other as never, item as never) };
      for (const other of valuesBeyond(of?.values?.type)) yield { path, put: () => map.set(key, other as never) };
      if (field.mapKind === 'message') yield* breaksOf(item as ReflectMessage, `${path}[${JSON.stringify(key)}].`);
    }
  }
}

function* breaksOfDuration(
  duration: Duration,
  { value: { greaterThan, lessThan } }: FieldRules['type'] & { case: 'duration' },
  path: string,
): Generator<Break> {
  const [least, most] = [greaterThan.value, lessThan.value];
  if (least !== undefined)
    yield { path, put: () => void Object.assign(duration, { seconds: least.seconds - 1n, nanos: 999_999_999 }) };
  if (most !== undefined) yield { path, put: () => void Object.assign(duration, { seconds: most.seconds, nanos: 1 }) };
}

/** The frames, once for each rule of each field that is set, with the first value that the rule does not allow. */
export function* broken(
  schema: DescMessage,
  frames: readonly Message[],
): Generator<{ path: string; frames: Message[] }> {
  for (const [f, frame] of frames.entries()) {
    for (const [b] of [...breaksOf(reflect(schema, clone(schema, frame)))].entries()) {
      const changed = clone(schema, frame);
      const { path, put } = [...breaksOf(reflect(schema, changed))][b]!;
      put();
      yield { path, frames: frames.map((other, i) => (i === f ? changed : other)) };
    }
  }
}
