/** `TRAJECTORY`, `TRAJECTORY@200` and `TRAJECTORY@tag`, as every command takes them. */
import type { AnabranchClient } from '../client/index.ts';
import { CliError } from './context.ts';

export interface Place {
  readonly trajectoryId: string;
  /** The step that is meant; undefined: the trajectory as a whole. */
  readonly at: { readonly stepNumber: bigint } | { readonly tag: string } | undefined;
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const NUMBER = /^\d+$/;
const TAG = /^[A-Za-z][A-Za-z0-9._/-]{0,127}$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** @throws CliError naming what was wanted */
export function parsePlace(text: string): Place {
  const at = text.indexOf('@');
  const trajectoryId = at < 0 ? text : text.slice(0, at);
  if (!UUID.test(trajectoryId)) {
    throw misunderstood(text, 'the id of a trajectory, a UUID, alone or followed by @STEP or @TAG; `tree` lists ids');
  }
  if (at < 0) return { trajectoryId, at: undefined };
  const step = text.slice(at + 1);
  if (NUMBER.test(step) && BigInt(step) <= MAX_STEP_NUMBER) return { trajectoryId, at: { stepNumber: BigInt(step) } };
  if (TAG.test(step)) return { trajectoryId, at: { tag: step } };
  throw misunderstood(text, 'a step number or a tag after @, such as @200 or @fork');
}

/** The number of the step that is meant; undefined if none is. A tag is looked up. */
export async function resolveStep(client: AnabranchClient, { trajectoryId, at }: Place): Promise<bigint | undefined> {
  if (at === undefined) return undefined;
  if ('stepNumber' in at) return at.stepNumber;
  const { tag } = await client.trajectories.getTag({ trajectoryId, name: at.tag });
  return tag?.stepNumber;
}

/** A count or a step number given to a flag. */
export function parseWhole(flag: string, text: string, least = 0n, most = MAX_STEP_NUMBER): bigint {
  if (NUMBER.test(text) && BigInt(text) >= least && BigInt(text) <= most) return BigInt(text);
  const bounds = most === MAX_STEP_NUMBER ? `${least} or more` : `${least} to ${most}`;
  throw new CliError(`${flag} is "${text}": wanted a whole number, ${bounds}.`, { exitCode: 2 });
}

function misunderstood(text: string, wanted: string): CliError {
  return new CliError(`TRAJECTORY is "${text}": wanted ${wanted}.`, { exitCode: 2 });
}
