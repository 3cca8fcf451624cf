import { defineConfig } from 'vitest/config';
import { shared } from '../support/vitest-shared.ts';

/** `npm run test:package`: the packed package, installed by npm of Node 20, on Node 20 and in Chromium. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/package/**/*.test.ts'],
    // No Postgres: clients do not see which database a server has.
    globalSetup: ['test/support/temporary-folder.ts', 'test/package/global-setup.ts'],
    testTimeout: 120_000,
  },
});
