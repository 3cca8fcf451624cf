/** Arguments that name a trajectory, a step of it, or a number, as every command takes them. */
import { type Place, parsePlace as parse } from '../client/index.ts';
import { CliError } from './context.ts';

const NUMBER = /^\d+$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** @throws CliError naming what was wanted */
export function parsePlace(text: string): Place {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new CliError(`TRAJECTORY is ${error.message}; \`tree\` lists ids.`, { exitCode: 2 });
  }
}

/** A count or a step number given to a flag. */
export function parseWhole(flag: string, text: string, least = 0n, most = MAX_STEP_NUMBER): bigint {
  if (NUMBER.test(text) && BigInt(text) >= least && BigInt(text) <= most) return BigInt(text);
  const bounds = most === MAX_STEP_NUMBER ? `${least} or more` : `${least} to ${most}`;
  throw new CliError(`${flag} is "${text}": wanted a whole number, ${bounds}.`, { exitCode: 2 });
}
