import { installTools } from './tools.ts';

/** Before the tests of `npm run test:languages`. The first time takes a minute or two; then everything is in node_modules/.cache. */
export async function setup(): Promise<void> {
  await installTools();
}
