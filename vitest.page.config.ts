import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/** `npm run test:page`: the page in Chromium. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/browser/**/*.test.ts'],
    globalSetup: [...shared.globalSetup, 'test/browser/build_page.ts'],
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
});
