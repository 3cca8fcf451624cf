import { createHash, hash } from 'node:crypto';
import type { Digest } from './ids.ts';

/** S1: a state's name is the SHA-256 of its bytes. */
export function stateDigest(bytes: Uint8Array): Digest {
  return hash('sha256', bytes, 'hex');
}

/** Computes the name of a state whose bytes arrive in pieces. */
export interface StateHasher {
  update(piece: Uint8Array): void;
  /** Returns the digest. Must be called once, at the end. */
  digest(): Digest;
}

export function createStateHasher(): StateHasher {
  const hasher = createHash('sha256');
  return {
    update: (piece) => void hasher.update(piece),
    digest: () => hasher.digest('hex'),
  };
}
