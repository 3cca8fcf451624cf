import { Readable } from 'node:stream';

/** An envelope's header: one byte of flags, four of length. gRPC, gRPC-Web and Connect's streams share it. */
const HEADER_BYTES = 5;
const BLOCK_BYTES = 16 * 1024;
const NOTHING: Buffer = Buffer.alloc(0);

/**
 * Lets whoever iterates over the request have its body in useful pieces, however small the frames were that brought it: whole envelopes where
 * the body consists of envelopes, else blocks of 16 KiB. Decoders that look at all pieces again with each new one (as the adapter's does)
 * would otherwise take time that grows with the square of the number of frames.
 */
export function coalesceBody(request: Readable, contentType: string | undefined, maxEnvelopeBytes: number): void {
  // Who stops reading has not stopped answering: the request must not be destroyed under the answer.
  const source = () => Readable.prototype.iterator.call(request, { destroyOnReturn: false }) as AsyncIterable<Buffer>;
  const pieces = isEnveloped(contentType)
    ? () => wholeEnvelopes(source(), maxEnvelopeBytes)
    : () => wholeBlocks(source(), BLOCK_BYTES);
  Object.defineProperty(request, Symbol.asyncIterator, { value: pieces });
}

function isEnveloped(contentType: string | undefined): boolean {
  return (
    contentType?.startsWith('application/grpc') === true || contentType?.startsWith('application/connect+') === true
  );
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
