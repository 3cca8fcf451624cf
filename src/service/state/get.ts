import { create } from '@bufbuild/protobuf';
import { type State, StateSchema } from '../../../gen/es/anabranch/v1/state_pb.js';
import {
  type GetStateRequest,
  type GetStateResponse,
  GetStateResponseSchema,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, stateNotFound } from '../../domain/errors.ts';
import { parseDigest } from '../../domain/ids.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';
import { stateBytes } from './bytes.ts';

export type GetStateArgs = Pick<GetStateRequest, 'digest' | 'offset'> & { readonly length?: bigint | undefined };

/** S3, S4: at least one chunk, perhaps an empty one. Errors: STATE_NOT_FOUND, RANGE_BEYOND_END, STATE_CORRUPT. */
export async function* getState(
  app: App,
  caller: Caller,
  args: GetStateArgs,
): AsyncGenerator<GetStateResponse, void, undefined> {
  const digest = parseDigest(args.digest, 'digest');
  const [info] = await app.store.findStates(caller.namespace, [digest], false);
  if (info === undefined) throw stateNotFound(digest);
  if (args.offset > info.size) throw rangeBeyondState(args.offset, info);
  const from = Number(args.offset);
  const to = args.length === undefined || args.length > info.size - from ? info.size : from + Number(args.length);
  let answer = create(GetStateResponseSchema, { state: fromState(info) });
  if (from === to) yield answer;
  for await (const chunk of stateBytes(app.store, caller.namespace, info, from, to)) {
    answer.chunk = chunk;
    yield answer;
    answer = create(GetStateResponseSchema);
  }
}

export function fromState({ digest, size }: StateInfo): State {
  return create(StateSchema, { digest, size: BigInt(size) });
}

function rangeBeyondState(offset: bigint, { digest, size }: StateInfo): AnabranchError {
  return new AnabranchError(
    'RANGE_BEYOND_END',
    `offset is ${offset}, but state ${digest} has ${size} bytes: begin there or before.`,
    { metadata: { digest, size: `${size}` } },
  );
}
