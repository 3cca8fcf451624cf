/**
 * Bytes of the header of an envelope: one byte of flags, four bytes of length. gRPC, gRPC-Web and Connect's streams
 * share this format.
 */
export const HEADER_BYTES = 5;
const COMPRESSED = 1;

/** Returns where the envelope ends that begins at `at`: beyond the bytes if it is incomplete. */
export function envelopeEnd(bytes: Uint8Array, at: number): number {
  const begin = at + HEADER_BYTES;
  if (begin > bytes.length) return begin;
  return begin + bytes[at + 1]! * 2 ** 24 + ((bytes[at + 2]! << 16) | (bytes[at + 3]! << 8) | bytes[at + 4]!);
}

/** Returns whether the envelope is compressed that begins at `at`. */
export function isCompressed(bytes: Uint8Array, at: number): boolean {
  return ((bytes[at] ?? 0) & COMPRESSED) !== 0;
}
