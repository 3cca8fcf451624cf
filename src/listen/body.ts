import { Readable } from 'node:stream';
import type { Turnstile } from './turnstile.ts';

/** An envelope's header: one byte of flags, four of length. gRPC, gRPC-Web and Connect's streams share it. */
const HEADER_BYTES = 5;
const BLOCK_BYTES = 16 * 1024;
/** What a message of more bytes becomes when it is decoded is worth waiting for one's turn. */
const LARGE_BYTES = 64 * 1024;
const COMPRESSED = 1;
const NOTHING: Buffer = Buffer.alloc(0);

/**
 * Lets whoever iterates over the request have its body in useful pieces, however small the frames were that brought it: whole envelopes where
 * the body consists of envelopes, else blocks of 16 KiB. Decoders that look at all pieces again with each new one (as the adapter's does)
 * would otherwise take time that grows with the square of the number of frames. Large messages, and those of which nobody knows how large they
 * are since they are compressed, take turns.
 */
export function coalesceBody(
  request: Readable,
  headers: { readonly [name: string]: string | readonly string[] | undefined },
  maxEnvelopeBytes: number,
  turnstile: Turnstile,
): void {
  // Who stops reading has not stopped answering: the request must not be destroyed under the answer.
  const source = () => Readable.prototype.iterator.call(request, { destroyOnReturn: false }) as AsyncIterable<Buffer>;
  const pieces = isEnveloped(String(headers['content-type']))
    ? () => envelopesInTurn(wholeEnvelopes(source(), maxEnvelopeBytes), request, turnstile, maxEnvelopeBytes)
    : () =>
        bodyInTurn(wholeBlocks(source(), BLOCK_BYTES), request, turnstile, headers['content-encoding'] !== undefined);
  Object.defineProperty(request, Symbol.asyncIterator, { value: pieces });
}

/** A turn ends when the next piece is asked for, since the message has been dealt with by then; or with the request. */
async function* envelopesInTurn(
  pieces: AsyncIterable<Buffer>,
  request: Readable,
  turnstile: Turnstile,
  maxBytes: number,
): AsyncGenerator<Buffer> {
  for await (const piece of pieces) {
    const weight = hasCompressed(piece) ? maxBytes : Math.min(piece.length, maxBytes);
    if (weight <= LARGE_BYTES) {
      yield piece;
      continue;
    }
    const leave = await turnstile.enter(weight);
    leaveWith(request, leave);
    try {
      yield piece;
    } finally {
      request.off('close', leave);
      leave();
    }
  }
}

/** A body that is one message is decoded at its end: its turn lasts from there until the request is over. */
async function* bodyInTurn(
  pieces: AsyncIterable<Buffer>,
  request: Readable,
  turnstile: Turnstile,
  compressed: boolean,
): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const piece of pieces) {
    bytes += piece.length;
    yield piece;
  }
  if (compressed || bytes > LARGE_BYTES) leaveWith(request, await turnstile.enter(Number.POSITIVE_INFINITY));
}

/** HTTP/1.1 calls a request closed as soon as it was read: the turn then lasts while it is decoded, which is done in one go. */
function leaveWith(request: Readable, leave: () => void): void {
  if (request.closed) setImmediate(leave);
  else request.once('close', leave);
}

function hasCompressed(piece: Buffer): boolean {
  for (let at = 0; at + HEADER_BYTES <= piece.length; at += HEADER_BYTES + piece.readUInt32BE(at + 1)) {
    if (((piece[at] ?? 0) & COMPRESSED) !== 0) return true;
  }
  return false;
}

function isEnveloped(contentType: string | undefined): boolean {
  return contentType !== undefined && /^application\/(grpc|connect)/i.test(contentType);
}

/**
 * Yields runs of whole envelopes. What begins an envelope larger than allowed is passed on at once, for the decoder to refuse, and so is an
 * unfinished envelope at the end. Holds at most one envelope.
 */
export async function* wholeEnvelopes(source: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let held: Buffer = NOTHING;
  let heldBytes = 0;
  for await (const piece of source) {
    let rest = piece;
    while (heldBytes > 0 && rest.length > 0) {
      const wanted = wantedBytes(held, heldBytes);
      if (wanted > maxBytes + HEADER_BYTES) break;
      const taken = Math.min(wanted - heldBytes, rest.length);
      held = withRoom(held, heldBytes, heldBytes + taken, wanted);
      rest.copy(held, heldBytes, 0, taken);
      heldBytes += taken;
      rest = rest.subarray(taken);
      if (heldBytes < HEADER_BYTES || heldBytes < wantedBytes(held, heldBytes)) continue;
      yield held.subarray(0, heldBytes);
      held = NOTHING;
      heldBytes = 0;
    }
    if (heldBytes > 0 && wantedBytes(held, heldBytes) > maxBytes + HEADER_BYTES) {
      yield held.subarray(0, heldBytes);
      held = NOTHING;
      heldBytes = 0;
    }
    if (rest.length === 0) continue;
    const whole = wholeBytes(rest, maxBytes);
    if (whole > 0) yield whole === rest.length ? rest : rest.subarray(0, whole);
    if (whole === rest.length) continue;
    heldBytes = rest.length - whole;
    held = withRoom(NOTHING, 0, heldBytes, heldBytes);
    rest.copy(held, 0, whole);
  }
  if (heldBytes > 0) yield held.subarray(0, heldBytes);
}

/** Yields blocks of at least `blockBytes`, but for the last. */
export async function* wholeBlocks(source: AsyncIterable<Buffer>, blockBytes: number): AsyncGenerator<Buffer> {
  let held: Buffer = NOTHING;
  let heldBytes = 0;
  for await (const piece of source) {
    if (heldBytes === 0 && piece.length >= blockBytes) {
      yield piece;
      continue;
    }
    held = withRoom(held, heldBytes, heldBytes + piece.length, heldBytes + piece.length);
    piece.copy(held, heldBytes);
    heldBytes += piece.length;
    if (heldBytes < blockBytes) continue;
    yield held.subarray(0, heldBytes);
    held = NOTHING;
    heldBytes = 0;
  }
  if (heldBytes > 0) yield held.subarray(0, heldBytes);
}

/** How many bytes the held envelope has in all; its header's, as long as that is not complete. */
function wantedBytes(held: Buffer, heldBytes: number): number {
  return heldBytes < HEADER_BYTES ? HEADER_BYTES : HEADER_BYTES + held.readUInt32BE(1);
}

/** How many bytes at the beginning are whole envelopes; all of them, once one is larger than allowed. */
function wholeBytes(piece: Buffer, maxBytes: number): number {
  let at = 0;
  while (at + HEADER_BYTES <= piece.length) {
    const length = piece.readUInt32BE(at + 1);
    if (length > maxBytes) return piece.length;
    if (at + HEADER_BYTES + length > piece.length) break;
    at += HEADER_BYTES + length;
  }
  return at;
}

/** Grows by doubling, up to what is wanted in the end: what was only announced costs nothing. */
function withRoom(held: Buffer, heldBytes: number, needed: number, wanted: number): Buffer {
  if (held.length >= needed) return held;
  const grown = Buffer.allocUnsafe(Math.max(needed, Math.min(wanted, Math.max(256, held.length * 2))));
  held.copy(grown, 0, 0, heldBytes);
  return grown;
}
