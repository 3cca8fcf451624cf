import type { TestProject } from 'vitest/node';
import { installTools } from './tools.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The client in Go, a program. */
    readonly goClient: string;
  }
}

/**
 * Runs before the tests of `npm run test:languages`. The first run takes a minute or two; later runs use
 * node_modules/.cache, and ~/.cache/anabranch for what does not depend on this checkout.
 */
export async function setup({ provide }: TestProject): Promise<void> {
  const { goClient } = await installTools();
  provide('goClient', goClient);
}
