import type { ReadStatesRequest, ReadStatesResponse } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import type { Call } from '../method.ts';
import { type Part, statesByDigest, statesByReference, statesOfRange, statesOfSteps } from './sources.ts';

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
    if (message !== undefined && !(fits(message, part.message) && bytes + part.bytes <= LIMITS.chunkBytes)) {
      call.app.drain.throwIfBegun();
      yield message;
      message = undefined;
      bytes = 0;
    }
    if (message === undefined) message = part.message;
    else message.pieces.push(...part.message.pieces);
    bytes += part.bytes;
  }
  if (message !== undefined) yield message;
}

function partsOf({ range, references, digests, steps }: ReadStatesRequest, call: Call): AsyncIterable<Part> {
  if (range !== undefined) return statesOfRange(range, call);
  if (steps !== undefined) return statesOfSteps(steps, call);
  return references.length > 0 ? statesByReference(references, call) : statesByDigest(digests, call);
}

/** Whether the pieces of a part can follow those of a message: they have the same owner, and are not too many. */
function fits(message: ReadStatesResponse, part: ReadStatesResponse): boolean {
  const onlyPieces = message.unknownDigests.length === 0 && part.unknownDigests.length === 0;
  return onlyPieces && message.trajectoryId === part.trajectoryId && message.pieces.length < PIECES;
}
