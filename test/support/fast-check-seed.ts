import process from 'node:process';
import fc from 'fast-check';

/**
 * A failing property prints its seed and path. `FC_SEED=<seed>` runs every property from that seed again. `FC_RUNS`
 * replaces the number of cases of each property.
 */
const seed = wholeNumber('FC_SEED');
const runs = wholeNumber('FC_RUNS');
fc.configureGlobal({
  ...fc.readConfigureGlobal(),
  ...(seed === undefined ? {} : { seed }),
  ...(runs === undefined ? {} : { numRuns: runs }),
});

function wholeNumber(name: string): number | undefined {
  const text = process.env[name];
  if (text === undefined || text === '') return undefined;
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new Error(`${name} is ${text}: expected a whole number`);
  return value;
}
