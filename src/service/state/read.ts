import type { ReadStatesRequest, ReadStatesResponse } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import type { Call } from '../method.ts';
import { statesByDigest, statesByReference, statesOfRange } from './sources.ts';

/** Maximum number of pieces in a message. */
const PIECES = 256;

/**
 * S5, S10: returns the states of one source in pieces, and holds only a few chunks in memory. Errors: those of the
 * source, SERVER_DRAINING.
 */
export async function* readStates(
  request: ReadStatesRequest,
  call: Call,
): AsyncGenerator<ReadStatesResponse, void, undefined> {
  let message: ReadStatesResponse | undefined;
  let bytes = 0;
  for await (const part of partsOf(request, call)) {
    const added = part.pieces[0]?.data.length ?? 0;
    if (message !== undefined && !(fits(message, part) && bytes + added <= LIMITS.chunkBytes)) {
      call.app.drain.throwIfBegun();
      yield message;
      message = undefined;
      bytes = 0;
    }
    if (message === undefined) message = part;
    else message.pieces.push(...part.pieces);
    bytes += added;
  }
  if (message !== undefined) yield message;
}

/** Returns messages with one piece each, or with digests without a state. */
function partsOf({ range, references, digests }: ReadStatesRequest, call: Call): AsyncIterable<ReadStatesResponse> {
  if (range !== undefined) return statesOfRange(range, call);
  return references.length > 0 ? statesByReference(references, call) : statesByDigest(digests, call);
}

/** Whether two parts have the same owner, pieces only, and not too many of them. */
function fits(message: ReadStatesResponse, part: ReadStatesResponse): boolean {
  const onlyPieces = message.unknownDigests.length === 0 && part.unknownDigests.length === 0;
  return onlyPieces && message.trajectoryId === part.trajectoryId && message.pieces.length < PIECES;
}
