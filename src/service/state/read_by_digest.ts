import { create } from '@bufbuild/protobuf';
import {
  type ReadStatesByDigestRequest,
  type ReadStatesByDigestResponse,
  ReadStatesByDigestResponseSchema,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { type Digest, parseDigest } from '../../domain/ids.ts';
import type { RestoredState } from '../../domain/step.ts';
import { readTogether } from '../../stream/whole_states.ts';
import type { Call } from '../method.ts';
import { isMissing, rowReader, smallReader } from './bytes.ts';
import { collectPieces, type OwnedPiece, piecesOf } from './pieces.ts';

/** S10: returns states by digest, and the digests without one. Errors: INVALID_REQUEST, STATE_CORRUPT. */
export async function* readStatesByDigest(
  request: ReadStatesByDigestRequest,
  call: Call,
): AsyncGenerator<ReadStatesByDigestResponse, void, undefined> {
  const digests = new Set(request.digests.map((digest, i) => parseDigest(digest, `digests[${i}]`)));
  const located = await call.app.store.locateStates(call.caller.namespace, [...digests]);
  const unknown = [...digests].filter((digest) => !located.has(digest));
  if (unknown.length > 0) yield create(ReadStatesByDigestResponseSchema, { unknownDigests: unknown });
  const states = [...digests].flatMap((digest) => located.get(digest) ?? []);
  const deleted: Digest[] = [];
  for await (const { pieces } of collectPieces(call.app, readPieces(call, states, deleted))) {
    yield create(ReadStatesByDigestResponseSchema, { pieces });
  }
  if (deleted.length > 0) yield create(ReadStatesByDigestResponseSchema, { unknownDigests: deleted });
}

/** Adds the digests of states that are deleted meanwhile to `deleted`. */
async function* readPieces(
  { app, caller }: Call,
  states: Parameters<typeof readTogether>[2],
  deleted: Digest[],
): AsyncGenerator<OwnedPiece, void, undefined> {
  const last: RestoredState = {};
  for await (const [state, data] of readTogether(app.store, caller.namespace, states)) {
    const read = data === undefined ? rowReader(app.store, caller.namespace, state, last) : smallReader(data);
    try {
      for await (const piece of piecesOf(read, state)) yield { trajectoryId: '', piece };
    } catch (error) {
      if (!isMissing(error)) throw error;
      deleted.push(state.digest);
    }
  }
}
