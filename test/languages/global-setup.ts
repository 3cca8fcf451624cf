import { installTools } from './tools.ts';

/**
 * Runs before the tests of `npm run test:languages`. The first run takes a minute or two; later runs use
 * node_modules/.cache, and ~/.cache/anabranch for what does not depend on this checkout.
 */
export async function setup(): Promise<void> {
  await installTools();
}
