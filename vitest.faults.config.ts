import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/** `npm run test:faults`: kills, cuts and full disks. One file at a time: each starts servers of its own and kills them. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/faults/**/*.test.ts'],
    fileParallelism: false,
    testTimeout: 300_000,
  },
});
