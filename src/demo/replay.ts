import { createHash } from 'node:crypto';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, readSteps } from '../client/index.ts';
import type { Gains } from './controller.ts';
import { act, restoreAt, STATE_NAME } from './episode.ts';

/**
 * Restores the environment at a step, continues with the same controller, and compares every step with the stored one:
 * action, observation and the digest of the whole state. Returns how many were identical. Throws at the first step that
 * differs.
 */
export async function countIdenticalSteps(
  client: AnabranchClient,
  { trajectoryId, stepNumber, gains }: { trajectoryId: string; stepNumber: bigint; gains: Gains },
  signal: AbortSignal,
): Promise<number> {
  const cart = await restoreAt(client, trajectoryId, stepNumber);
  let identical = 0;
  for await (const { step } of readSteps(client, { trajectoryId, startStepNumber: stepNumber + 1n, signal })) {
    const replayed = act(cart, gains);
    const [now, then] = [traceOf(replayed, digestOf(cart.snapshot())), traceOf(step, storedDigest(step))];
    if (now !== then) {
      throw new Error(`replayed from step ${stepNumber}, step ${step.stepNumber} is ${now}, expected ${then}`);
    }
    identical++;
  }
  return identical;
}

interface Told {
  readonly content?: { readonly json?: string | undefined } | undefined;
}

/** The texts of action and observation identify the bits of each number; the digest identifies those of the state. */
function traceOf(step: { readonly actions: readonly Told[]; readonly observations: readonly Told[] }, digest?: string) {
  return JSON.stringify([...step.actions, ...step.observations].map(({ content }) => content?.json).concat(digest));
}

function storedDigest({ states }: Step): string | undefined {
  return states.find(({ name }) => name === STATE_NAME)?.digest;
}

function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
