import {
  create,
  type DescMessage,
  fromBinary,
  type Message,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf';
import { BinaryReader } from '@bufbuild/protobuf/wire';
import type { EncodedSteps } from '../../store/contract/step.ts';

/** A response that was encoded without creating messages for its steps. */
export class EncodedResponse {
  readonly schema: DescMessage;
  readonly bytes: Uint8Array;
  /** The step at which a client that did not receive the response can continue. Undefined: there is none. */
  readonly resumeAt: bigint | undefined;

  constructor(schema: DescMessage, bytes: Uint8Array, resumeAt: bigint | undefined) {
    this.schema = schema;
    this.bytes = bytes;
    this.resumeAt = resumeAt;
  }

  decode(): Message {
    return fromBinary(this.schema, this.bytes);
  }

  /** Returns a message that has the bytes as an unknown field, so that encoding it returns them without decoding. */
  asUnknown(): Message {
    const message: Message = create(this.schema);
    if (this.bytes.length === 0) return message;
    const reader = new BinaryReader(this.bytes);
    const [no, wireType] = reader.tag();
    message.$unknown = [{ no, wireType, data: this.bytes.subarray(reader.pos) }];
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
  const bytes = steps === undefined ? others : Buffer.concat([others, steps.bytes]);
  return new EncodedResponse(schema, bytes, resumeAt);
}
