import type { Digest } from '../ids.ts';
import { stepDigest } from '../step_digest.ts';
import { readStep } from './read.ts';

/** W6: returns the digest of the stored step in bytes [from, to): that of the step as the client sent it. */
export function storedStepDigest(bytes: Uint8Array, from: number, to: number): Digest {
  return stepDigest(readStep(bytes, from, to));
}
