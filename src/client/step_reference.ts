import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ClientCalls } from './calls.ts';

/** A trajectory or one of its steps, in the notation of rule B5: `TRAJECTORY`, `TRAJECTORY@200`, `TRAJECTORY@tag`. */
export interface StepReference {
  readonly trajectoryId: string;
  /** The step. Undefined means the whole trajectory. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string } | undefined;
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const NUMBER = /^\d+$/;
/** A tag begins with a letter, so that it cannot be read as a step number. */
const TAG = /^[A-Za-z][A-Za-z0-9._/-]{0,127}$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** Parses the notation of rule B5. Throws RangeError, with the expected notation in its message. */
export function parseStepReference(text: string): StepReference {
  const at = text.indexOf('@');
  const trajectoryId = at < 0 ? text : text.slice(0, at);
  if (!UUID.test(trajectoryId)) {
    throw invalid(text, 'the id of a trajectory (a UUID), alone or followed by @STEP or @TAG');
  }
  if (at < 0) return { trajectoryId, at: undefined };
  const step = text.slice(at + 1);
  if (NUMBER.test(step) && BigInt(step) <= MAX_STEP_NUMBER) return { trajectoryId, at: { stepNumber: BigInt(step) } };
  if (TAG.test(step)) return { trajectoryId, at: { tag: step } };
  throw invalid(text, 'a step number or a tag after @, such as @200 or @fork');
}

/** Returns the number of the referenced step, or undefined if the reference has none. Looks up a tag with GetStep. */
export async function resolveStep(
  client: Pick<ClientCalls, 'trajectories'>,
  { trajectoryId, at }: StepReference,
): Promise<bigint | undefined> {
  if (at === undefined) return undefined;
  if ('stepNumber' in at) return at.stepNumber;
  const { step } = await client.trajectories.getStep({ trajectoryId, tag: at.tag, view: View.BASIC });
  return step?.stepNumber;
}

function invalid(text: string, expected: string): RangeError {
  return new RangeError(`"${text}": expected ${expected}`);
}
