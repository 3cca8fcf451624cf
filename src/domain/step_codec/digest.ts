import type { Digest } from '../ids.ts';
import { stepDigest } from '../step_digest.ts';
import { readStep } from './read.ts';

/** W6: returns the digest of an encoded step: that of the step as the client sent it. Errors: DamagedStep. */
export function storedStepDigest(bytes: Uint8Array): Digest {
  return stepDigest(readStep(bytes, 0, bytes.length));
}
