import process from 'node:process';
import { setup as bundlePrograms } from '../faults/global-setup.ts';

/**
 * Bundles the programs that tests start, if the run has all tests: about twenty processes start from the bundle. A run
 * of some files starts its few from the source.
 */
export async function setup(): Promise<(() => Promise<void>) | undefined> {
  const [, , ...args] = process.argv;
  const isWhole = args.every((each) => each === 'run' || each.startsWith('-'));
  return isWhole ? bundlePrograms() : undefined;
}
