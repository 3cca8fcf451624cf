import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import { type State, StateSchema } from '../../gen/es/anabranch/v1/state_pb.js';
import {
  BatchGetStatesResponseSchema,
  GetStateResponseSchema,
  type PutStateRequest,
  PutStateRequestSchema,
  PutStateResponseSchema,
  ReadStatesResponseSchema,
  StatePieceSchema,
  StateService,
  type StatePiece as WirePiece,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import { batchGetStates } from '../app/state/batch_get.ts';
import { getState } from '../app/state/get.ts';
import { putState } from '../app/state/put.ts';
import { readStates, type StatePiece } from '../app/state/read.ts';
import { invalidField } from '../domain/errors.ts';
import { clientStream, serverStream, unary, type Wire } from './call.ts';
import type { Validator } from './validate.ts';

const { putState: put, getState: get, batchGetStates: batchGet, readStates: read } = StateService.method;

export function stateService(wire: Wire): ServiceImpl<typeof StateService> {
  return {
    putState: clientStream(wire, put, async (requests, { app, caller }) => {
      const frames = requests[Symbol.asyncIterator]();
      const first = await frames.next();
      if (first.done === true)
        throw invalidField('chunk', 'at least one frame must be sent; for an empty state, an empty one');
      wire.validator.check(PutStateRequestSchema, first.value);
      const chunks = chunksOf(first.value, frames, wire.validator);
      const state = await putState(app, caller, { digest: first.value.digest, chunks });
      return create(PutStateResponseSchema, { state: fromState(state) });
    }),

    getState: serverStream(wire, get, async function* (request, { app, caller }) {
      const { digest, offset, length } = request;
      for await (const { state, chunk } of getState(app, caller, { digest, offset, length })) {
        const answer = create(GetStateResponseSchema);
        if (state !== undefined) answer.state = fromState(state);
        answer.chunk = chunk;
        yield answer;
      }
    }),

    batchGetStates: unary(wire, batchGet, 'write', async ({ digests }, { app, caller }) => {
      const states = await batchGetStates(app, caller, { digests });
      return create(BatchGetStatesResponseSchema, { states: states.map(fromState) });
    }),

    readStates: serverStream(wire, read, async function* (request, { app, caller }) {
      const { trajectoryId, startStepNumber, endStepNumber, name, every } = request;
      const args = { trajectoryId, startStepNumber, endStepNumber, name, every };
      for await (const { trajectoryId: owner, pieces } of readStates(app, caller, args)) {
        const answer = create(ReadStatesResponseSchema);
        answer.trajectoryId = owner;
        for (const piece of pieces) answer.pieces.push(fromPiece(piece));
        yield answer;
      }
    }),
  };
}

/** One chunk at a time, as the store asks for them: memory is bounded by the chunks (S4). */
async function* chunksOf(
  first: PutStateRequest,
  frames: AsyncIterator<PutStateRequest>,
  validator: Validator,
): AsyncGenerator<Uint8Array> {
  yield first.chunk;
  for (;;) {
    const next = await frames.next();
    if (next.done === true) return;
    validator.check(PutStateRequestSchema, next.value);
    if (next.value.digest !== '') throw invalidField('digest', 'must stand in the first frame only');
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
