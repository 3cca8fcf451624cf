import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { type State, StateSchema } from '../../../gen/es/anabranch/v1/state_pb.js';
import { type GetStateRequest, GetStateResponseSchema } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { AnabranchError } from '../../domain/errors.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import { type EncodedResponse, withBytes, withSteps } from '../answer/encoded.ts';
import type { Call } from '../method.ts';
import { addressOf, contentBytes, findContent } from './content.ts';

/**
 * Returns at least one chunk (S3, S4). Errors: STATE_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND,
 * RANGE_BEYOND_END, STATE_CORRUPT.
 */
export async function* getState(
  { digest, reference, offset, length }: GetStateRequest,
  call: Call,
): AsyncGenerator<EncodedResponse, void, undefined> {
  const found = await findContent(call, addressOf(digest, reference));
  const { size, mediaType } = found;
  if (offset > size) throw rangeBeyondState(offset, found);
  const from = Number(offset);
  const to = length === undefined || length > size - from ? size : from + Number(length);
  let others: MessageInitShape<typeof GetStateResponseSchema> = { state: fromState(found), mediaType };
  if (from === to) yield withSteps(GetStateResponseSchema, others, undefined);
  for await (const chunk of contentBytes(call, found, from, to)) {
    yield withBytes(GetStateResponseSchema, others, GetStateResponseSchema.field.chunk, chunk);
    others = {};
  }
}

export function fromState({ digest, size }: StateInfo): State {
  return create(StateSchema, { digest, size: BigInt(size) });
}

function rangeBeyondState(offset: bigint, { digest, size }: StateInfo): AnabranchError {
  return new AnabranchError(
    'RANGE_BEYOND_END',
    `offset is ${offset}, but state ${digest} has ${size} bytes: use an offset of at most ${size}.`,
    { metadata: { digest, size: `${size}` } },
  );
}
