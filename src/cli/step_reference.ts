/** Arguments that name a trajectory, a step or a number. Shared by all commands. */
import { parseStepReference as parse, type StepReference } from '../client/index.ts';
import { mayHoldPassword } from '../config/scrub_url.ts';
import { UsageError } from './context.ts';

const NUMBER = /^\d+$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** Parses `TRAJECTORY`, `TRAJECTORY@STEP` or `TRAJECTORY@TAG`. Throws UsageError with the expected form. */
export function parseStepReference(text: string): StepReference {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const message = mayHoldPassword(text)
      ? 'TRAJECTORY is not the id of a trajectory (not shown: it may hold a password)'
      : `TRAJECTORY is ${error.message}`;
    throw new UsageError(`${message}; \`tree\` lists ids.`);
  }
}

/** Parses a count or a step number of a flag. Throws UsageError if it is out of bounds. */
export function parseWhole(flag: string, text: string, min = 0n, max = MAX_STEP_NUMBER): bigint {
  if (NUMBER.test(text) && BigInt(text) >= min && BigInt(text) <= max) return BigInt(text);
  const bounds = max === MAX_STEP_NUMBER ? `${min} or more` : `${min} to ${max}`;
  throw new UsageError(`${flag} is "${text}": expected a whole number, ${bounds}.`);
}
