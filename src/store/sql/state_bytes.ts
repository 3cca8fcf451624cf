import { hash } from 'node:crypto';
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { AnabranchError } from '../../domain/errors.ts';
import type { Digest } from '../../domain/ids.ts';

/** How bytes of states stand in the store: as they are, or compressed where that pays. */
export interface EncodedBytes {
  readonly encoding: 'raw' | 'zstd';
  readonly data: Uint8Array;
}

/** Below this, the cost of a compression context is more than what compression saves. */
const WORTH_COMPRESSING = 2048;

export function encodeBytes(data: Uint8Array): EncodedBytes {
  if (data.length >= WORTH_COMPRESSING) {
    const compressed = zstdCompressSync(data);
    if (compressed.length < data.length * 0.9) return { encoding: 'zstd', data: compressed };
  }
  return { encoding: 'raw', data };
}

/** The bytes back, verified by their digest (S3). */
export function decodeBytes(
  encoding: string,
  data: Uint8Array,
  size: number,
  digest: Digest,
  state: Digest,
): Uint8Array {
  let bytes = data;
  if (encoding === 'zstd') {
    try {
      bytes = zstdDecompressSync(data, { maxOutputLength: Math.max(size, 1) });
    } catch (cause) {
      throw stateCorrupt(state, cause);
    }
  }
  if (bytes.length !== size || hash('sha256', bytes, 'hex') !== digest) throw stateCorrupt(state);
  return bytes;
}

export function stateCorrupt(digest: Digest, cause?: unknown): AnabranchError {
  return new AnabranchError(
    'STATE_CORRUPT',
    `The stored bytes of state ${digest} no longer have that digest: the storage below is damaged; restore it from a backup.`,
    { metadata: { digest }, ...(cause === undefined ? {} : { cause }) },
  );
}
