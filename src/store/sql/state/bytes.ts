import { createHash } from 'node:crypto';
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { AnabranchError } from '../../../domain/errors.ts';
import type { Digest } from '../../../domain/ids.ts';
import type { NewState } from '../../../domain/step.ts';

/** Stored form of the bytes of states: unchanged, or compressed if that saves space. */
export interface EncodedBytes {
  readonly encoding: 'raw' | 'zstd';
  readonly data: Uint8Array;
}

/** Minimum size in bytes: below it, a compression context costs more than compression saves. */
const WORTH_COMPRESSING = 2048;

export function encodeBytes(data: Uint8Array): EncodedBytes {
  if (data.length >= WORTH_COMPRESSING) {
    const compressed = zstdCompressSync(data);
    if (compressed.length < data.length * 0.9) return { encoding: 'zstd', data: compressed };
  }
  return { encoding: 'raw', data };
}

/**
 * A state that came inline, ready to be stored. Encoded before the transaction begins, so that no lock waits for
 * compression.
 */
export interface EncodedState extends EncodedBytes {
  readonly digest: Digest;
  readonly size: number;
}

export function encodeStates(states: readonly NewState[]): EncodedState[] {
  return states.map(({ digest, data }) => ({ digest, size: data.length, ...encodeBytes(data) }));
}

/** The bytes back, verified (S3). */
export function decodeBytes(
  { encoding, data }: { readonly encoding: string; readonly data: Uint8Array },
  size: number,
  state: Digest,
  isRight: (bytes: Uint8Array) => boolean,
): Uint8Array {
  let bytes = data;
  if (encoding === 'zstd') {
    try {
      bytes = zstdDecompressSync(data, { maxOutputLength: Math.max(size, 1) });
    } catch (cause) {
      throw stateCorrupt(state, cause);
    }
  }
  if (bytes.length !== size || !isRight(bytes)) throw stateCorrupt(state);
  return bytes;
}

/**
 * Digest that is stored with a chunk. It includes the upload and the ordinal, so that exchanged chunks are detected.
 */
export function chunkDigest(upload: string, ordinal: bigint, bytes: Uint8Array): Digest {
  return createHash('sha256').update(`${upload}/${ordinal}/`).update(bytes).digest('hex');
}

export function stateCorrupt(digest: Digest, cause?: unknown): AnabranchError {
  return new AnabranchError(
    'STATE_CORRUPT',
    `The stored bytes of state ${digest} do not match its digest: the storage is damaged. Restore the database from a backup.`,
    { metadata: { digest }, ...(cause === undefined ? {} : { cause }) },
  );
}
