import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/** `npm run test:languages`: clients in other languages, whose tools are installed first. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/languages/**/*.test.ts'],
    globalSetup: [...shared.globalSetup, 'test/languages/global-setup.ts'],
    testTimeout: 120_000,
  },
});
