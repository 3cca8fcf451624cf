import { crc32 } from 'node:zlib';
import { sql } from 'kysely';
import { LIMITS } from '../../../../domain/limits.ts';
import { decompress, type SegmentCompressor } from '../../kit/compression.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';

/** Values of `segments.encoding`. Steps are messages `Step`, each after its length, in this version of the format. */
export const PLAIN = 1n;
/** As `PLAIN`, compressed by zstd. */
export const COMPRESSED = 2n;

/** The columns that hold the encoded steps of a segment. */
export type StoredBody = Pick<SegmentRow, 'body' | 'encoding' | 'body_bytes' | 'checksum'>;

/** Length of the encoded steps of a segment `s`. */
export const BODY_BYTES = sql<bigint>`coalesce(s.body_bytes, octet_length(s.body))`;

/** Length of the small states of a segment `s`. */
export const STATES_BYTES = sql<bigint>`coalesce(s.states_bytes, octet_length(s.states))`;

export function bytesOf({ body, body_bytes }: Pick<StoredBody, 'body' | 'body_bytes'>): number {
  return body_bytes === null ? body.length : Number(body_bytes);
}

/** Of appended steps: the names of the states are not in the index before the segment is merged. */
export function plainBody(first: bigint, body: Uint8Array): StoredBody {
  return { body, encoding: PLAIN, body_bytes: null, checksum: checksumOf(first, body) };
}

/** Of merged steps, not compressed. */
export function indexedBody(first: bigint, body: Uint8Array): StoredBody {
  return { ...plainBody(first, body), body_bytes: BigInt(body.length) };
}

/** Of merged steps: compresses them on another thread, if that saves at least a tenth of the bytes. */
export async function compressedBody(
  compressor: SegmentCompressor,
  first: bigint,
  body: Uint8Array,
): Promise<StoredBody> {
  const plain = indexedBody(first, body);
  const packed = await compressIfSmaller(compressor, body);
  return packed === undefined ? plain : { ...plain, body: packed, encoding: COMPRESSED };
}

async function compressIfSmaller(compressor: SegmentCompressor, bytes: Uint8Array): Promise<Uint8Array | undefined> {
  if (bytes.length === 0) return undefined;
  const packed = await compressor.compress(bytes);
  return packed.length > bytes.length * 0.9 ? undefined : packed;
}

/** The columns that hold the small states of a segment. */
export type StoredStates = Pick<SegmentRow, 'states' | 'states_bytes'>;

export async function compressedStates(compressor: SegmentCompressor, states: Uint8Array): Promise<StoredStates> {
  const packed = await compressIfSmaller(compressor, states);
  return packed === undefined
    ? { states, states_bytes: null }
    : { states: packed, states_bytes: BigInt(states.length) };
}

/** Returns the small states. Damaged bytes become others of the same length, which match no digest. */
export function readStates({ states, states_bytes: length }: StoredStates): Uint8Array {
  if (length === null) return states;
  return unpacked(states, length) ?? new Uint8Array(Math.min(Number(length), MOST_UNPACKED)).fill(1);
}

/** Returns the encoded steps, or undefined if their bytes are damaged. */
export function readBody(first: bigint, stored: StoredBody): Uint8Array | undefined {
  const body = stored.encoding === PLAIN ? stored.body : unpacked(stored.body, stored.body_bytes ?? 0n);
  return body !== undefined && checksumOf(first, body) === stored.checksum ? body : undefined;
}

/**
 * More bytes than any segment has. A segment has more than some hundred KiB only if one step is so large, with all of
 * its states that are small or were attached.
 */
const MOST_UNPACKED = 8 * LIMITS.messageBytes;

/** Returns at most as many bytes as there were. The stored number may be damaged too, so a bound limits the memory. */
function unpacked(packed: Uint8Array, bytes: bigint): Uint8Array | undefined {
  try {
    return decompress(packed, Math.min(Number(bytes), MOST_UNPACKED));
  } catch {
    return undefined;
  }
}

/** Includes the number of the first step, so that exchanged segments are detected. */
function checksumOf(first: bigint, body: Uint8Array): bigint {
  return BigInt(crc32(body, Number(first & 0xffff_ffffn)));
}
