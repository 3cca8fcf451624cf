import {
  create,
  type DescField,
  type DescMessage,
  fromBinary,
  type Message,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf';
import { BinaryReader, BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import type { EncodedSteps } from '../../store/contract/step.ts';

/** A response that was encoded without creating messages for its steps. */
export class EncodedResponse {
  readonly schema: DescMessage;
  /** The bytes of the response, in two parts, because they are copied into an envelope. */
  readonly parts: readonly [others: Uint8Array, steps: Uint8Array];
  /** The step at which a client that did not receive the response can continue. Undefined: there is none. */
  readonly resumeAt: bigint | undefined;

  constructor(schema: DescMessage, parts: EncodedResponse['parts'], resumeAt: bigint | undefined) {
    this.schema = schema;
    this.parts = parts;
    this.resumeAt = resumeAt;
  }

  decode(): Message {
    return fromBinary(this.schema, Buffer.concat(this.parts));
  }

  /** Returns a message that has the bytes as an unknown field, so that encoding it returns them without decoding. */
  asUnknown(): Message {
    const message: Message = create(this.schema);
    const bytes = Buffer.concat(this.parts);
    if (bytes.length === 0) return message;
    const reader = new BinaryReader(bytes);
    const [no, wireType] = reader.tag();
    message.$unknown = [{ no, wireType, data: bytes.subarray(reader.pos) }];
    return message;
  }
}

/** Returns a response with these steps. `init` has its other fields. */
export function withSteps<Desc extends DescMessage>(
  schema: Desc,
  init: MessageInitShape<Desc>,
  steps: EncodedSteps | undefined,
  resumeAt?: bigint,
): EncodedResponse {
  const others = toBinary(schema, create(schema, init));
  return new EncodedResponse(schema, [others, steps?.bytes ?? NOTHING], resumeAt);
}

/** Returns a response with a field of bytes that are not copied. `init` has its other fields. */
export function withBytes<Desc extends DescMessage>(
  schema: Desc,
  init: MessageInitShape<Desc>,
  field: DescField,
  bytes: Uint8Array,
): EncodedResponse {
  const out = new BinaryWriter().raw(toBinary(schema, create(schema, init)));
  const others = out.tag(field.number, WireType.LengthDelimited).uint32(bytes.length).finish();
  return new EncodedResponse(schema, [others, bytes], undefined);
}

const NOTHING = new Uint8Array();
