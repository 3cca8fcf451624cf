import { existsSync } from 'node:fs';
import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/** `npm run test:languages`: clients in other languages; their tools are installed by test/languages/global-setup.ts. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/languages/**/*.test.ts'],
    globalSetup: [...shared.globalSetup, 'test/languages/global-setup.ts'].filter((file) => existsSync(file)),
    testTimeout: 120_000,
  },
});
