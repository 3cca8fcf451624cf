import { create } from '@bufbuild/protobuf';
import { type State, StateSchema } from '../../../gen/es/anabranch/v1/state_pb.js';
import {
  GetStateResponseSchema,
  type PutStateRequest,
  PutStateRequestSchema,
  ReadStatesResponseSchema,
  StatePieceSchema,
  type StateService,
  type StatePiece as WirePiece,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { parseDigest } from '../../domain/ids.ts';
import type { FramesCall, Methods } from '../method.ts';
import { getState } from './get.ts';
import { putState } from './put.ts';
import { readStates, type StatePiece } from './read.ts';

/** States: puts, looks, and reads of their bytes (S1 to S6). */
export const stateMethods: Methods<typeof StateService, 'putState' | 'getState' | 'batchGetStates' | 'readStates'> = {
  async putState(requests, call) {
    const frames = requests[Symbol.asyncIterator]();
    const first = await frames.next();
    if (first.done === true)
      throw invalidField('chunk', 'at least one frame must be sent; for an empty state, an empty one');
    call.check(PutStateRequestSchema, first.value);
    const args = { digest: first.value.digest, chunks: chunksOf(first.value, frames, call) };
    return { state: fromState(await putState(call.app, call.caller, args)) };
  },

  getState: {
    async *messages({ digest, offset, length }, { app, caller }) {
      for await (const { state, chunk } of getState(app, caller, { digest, offset, length })) {
        const answer = create(GetStateResponseSchema);
        if (state !== undefined) answer.state = fromState(state);
        answer.chunk = chunk;
        yield answer;
      }
    },
  },

  /** Returns which states are stored, in the order of the request, each once; renews their time (S6). */
  async batchGetStates(request, { app, caller }) {
    const digests = new Set(request.digests.map((digest, i) => parseDigest(digest, `digests[${i}]`)));
    return { states: (await app.store.findStates(caller.namespace, [...digests], true)).map(fromState) };
  },

  readStates: {
    async *messages({ trajectoryId, startStepNumber, endStepNumber, name, every }, { app, caller }) {
      const args = { trajectoryId, startStepNumber, endStepNumber, name, every };
      for await (const { trajectoryId: owner, pieces } of readStates(app, caller, args)) {
        const answer = create(ReadStatesResponseSchema);
        answer.trajectoryId = owner;
        for (const piece of pieces) answer.pieces.push(fromPiece(piece));
        yield answer;
      }
    },
  },
};

/** One chunk at a time, as the store asks for them: memory is bounded by the chunks (S4). */
async function* chunksOf(
  first: PutStateRequest,
  frames: AsyncIterator<PutStateRequest>,
  { check }: FramesCall,
): AsyncGenerator<Uint8Array> {
  yield first.chunk;
  for (;;) {
    const next = await frames.next();
    if (next.done === true) return;
    check(PutStateRequestSchema, next.value);
    if (next.value.digest !== '') throw invalidField('digest', 'must be set in the first frame only');
    yield next.value.chunk;
  }
}

function fromState({ digest, size }: { readonly digest: string; readonly size: number }): State {
  return create(StateSchema, { digest, size: BigInt(size) });
}

function fromPiece(piece: StatePiece): WirePiece {
  const wire = create(StatePieceSchema);
  wire.stepNumber = piece.stepNumber;
  wire.digest = piece.digest;
  wire.mediaType = piece.mediaType;
  wire.size = BigInt(piece.size);
  wire.offset = BigInt(piece.offset);
  wire.data = piece.data;
  return wire;
}
