import { create } from '@bufbuild/protobuf';
import { type StatePiece, StatePieceSchema } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';
import { type ReadState, stateBytes } from './bytes.ts';

/** Maximum number of pieces in a message. */
export const PIECES = 256;

/** A piece, and the trajectory that owns its step, if there is a step. */
export interface OwnedPiece {
  readonly trajectoryId: string;
  readonly piece: StatePiece;
}

/** Returns a state in pieces: one if it is empty. Errors: as `stateBytes`. */
export async function* piecesOf(
  read: ReadState,
  state: StateInfo & { readonly mediaType?: string; readonly stepNumber?: bigint },
): AsyncGenerator<StatePiece, void, undefined> {
  const { digest, mediaType = '', stepNumber = 0n } = state;
  const size = BigInt(state.size);
  const pieceAt = (offset: bigint, data: Uint8Array) =>
    create(StatePieceSchema, { stepNumber, digest, mediaType, size, offset, data });
  let offset = 0n;
  for await (const data of stateBytes(read, state, 0, state.size)) {
    yield pieceAt(offset, data);
    offset += BigInt(data.length);
  }
  if (size === 0n) yield pieceAt(0n, new Uint8Array());
}

/** Collects pieces of one owner for messages with at most 256 KiB of content. Errors: SERVER_DRAINING. */
export async function* collectPieces(
  app: App,
  pieces: AsyncIterable<OwnedPiece>,
): AsyncGenerator<{ readonly trajectoryId: string; readonly pieces: StatePiece[] }, void, undefined> {
  let message: { readonly trajectoryId: string; readonly pieces: StatePiece[] } | undefined;
  let bytes = 0;
  for await (const { trajectoryId, piece } of pieces) {
    const isFull = bytes + piece.data.length > LIMITS.chunkBytes || message?.pieces.length === PIECES;
    if (message !== undefined && (isFull || message.trajectoryId !== trajectoryId)) {
      app.drain.throwIfBegun();
      yield message;
      message = undefined;
      bytes = 0;
    }
    message ??= { trajectoryId, pieces: [] };
    message.pieces.push(piece);
    bytes += piece.data.length;
  }
  if (message !== undefined) yield message;
}
