import process from 'node:process';
import { defineConfig } from 'vitest/config';
import { shared } from '../support/vitest-shared.ts';

/** `npm run test:page`: the page in Chromium. */
export default defineConfig({
  test: {
    ...shared,
    testTimeout: shared.testTimeout * Number(process.env.TEST_PAGE_SLOWDOWN ?? 1),
    // A worker process runs many files one after another, so it loads the modules of the project once.
    isolate: false,
    include: ['test/browser/**/*.test.ts'],
    // No Postgres: the page does not see which database a server has. `npm run test:faults` takes both.
    globalSetup: ['test/support/memory-folder.ts', 'test/support/temporary-folder.ts', 'test/browser/global_setup.ts'],
  },
});
