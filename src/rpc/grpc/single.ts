import type { Http2ServerRequest } from 'node:http2';
import { Code, ConnectError } from '@connectrpc/connect';
import { HEADER_BYTES, incompleteEnvelope } from './envelope.ts';

/** What is larger takes turns, and has its values counted: both are done on the other way. */
const SMALL_BYTES = 64 * 1024;
/** Who sends a small message in more pieces than this is not in a hurry. */
const MOST_PIECES = 8;

export interface SingleReading {
  /** The one message of the body, still encoded. */
  readonly whole: (message: Uint8Array) => void;
  /** The body has ended, and was not one message. */
  readonly broken: (error: ConnectError) => void;
  /** The body is not what this was made for. All of it can still be read from the request. */
  readonly other: () => void;
}

/** Reads a body that is one small, plain message, as the requests of nearly all calls are. */
export function readSingle(request: Http2ServerRequest, { whole, broken, other }: SingleReading): void {
  let held: Buffer = Buffer.alloc(0);
  let pieces = 0;
  const onData = (piece: Buffer) => {
    held = held.length === 0 ? piece : Buffer.concat([held, piece]);
    pieces += 1;
    if (held.length < HEADER_BYTES ? pieces < MOST_PIECES : isSmallAndPlain()) return;
    leave();
    request.pause();
    request.unshift(held);
    other();
  };
  const isSmallAndPlain = () => {
    const bytes = HEADER_BYTES + held.readUInt32BE(1);
    if (held[0] !== 0 || bytes > SMALL_BYTES || held.length > bytes) return false;
    return held.length === bytes || pieces < MOST_PIECES;
  };
  const onEnd = () => {
    leave();
    if (held.length === 0) {
      broken(new ConnectError('protocol error: missing input message for this method', Code.Unimplemented));
    } else if (held.length < HEADER_BYTES || held.length < HEADER_BYTES + held.readUInt32BE(1)) {
      broken(incompleteEnvelope());
    } else {
      whole(new Uint8Array(held.buffer, held.byteOffset + HEADER_BYTES, held.length - HEADER_BYTES));
    }
  };
  const leave = () => {
    request.off('data', onData);
    request.off('end', onEnd);
  };
  request.on('data', onData);
  request.on('end', onEnd);
}
