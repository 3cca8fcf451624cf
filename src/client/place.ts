import type { ClientCalls } from './calls.ts';

/** A trajectory, or one step of it, as people write it (rule B5): `TRAJECTORY`, `TRAJECTORY@200`, `TRAJECTORY@tag`. */
export interface Place {
  readonly trajectoryId: string;
  /** The step that is meant; undefined: the trajectory as a whole. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string } | undefined;
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const NUMBER = /^\d+$/;
/** Begins with a letter, so that it is never a number. */
const TAG = /^[A-Za-z][A-Za-z0-9._/-]{0,127}$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** Reads a place. Throws RangeError, which says what was wanted. */
export function parsePlace(text: string): Place {
  const at = text.indexOf('@');
  const trajectoryId = at < 0 ? text : text.slice(0, at);
  if (!UUID.test(trajectoryId)) {
    throw wanted(text, 'the id of a trajectory, a UUID, alone or followed by @STEP or @TAG');
  }
  if (at < 0) return { trajectoryId, at: undefined };
  const step = text.slice(at + 1);
  if (NUMBER.test(step) && BigInt(step) <= MAX_STEP_NUMBER) return { trajectoryId, at: { stepNumber: BigInt(step) } };
  if (TAG.test(step)) return { trajectoryId, at: { tag: step } };
  throw wanted(text, 'a step number or a tag after @, such as @200 or @fork');
}

/** The number of the step that is meant; undefined if none is. A tag is looked up. */
export async function resolveStep(
  client: Pick<ClientCalls, 'trajectories'>,
  { trajectoryId, at }: Place,
): Promise<bigint | undefined> {
  if (at === undefined) return undefined;
  if ('stepNumber' in at) return at.stepNumber;
  const { tag } = await client.trajectories.getTag({ trajectoryId, name: at.tag });
  return tag?.stepNumber;
}

function wanted(text: string, what: string): RangeError {
  return new RangeError(`"${text}": wanted ${what}`);
}
