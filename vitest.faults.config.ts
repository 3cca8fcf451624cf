import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/**
 * Proofs that count what happened and measure nothing: whatever else the machine does may only add to what they go through. Their time
 * is mostly waiting for processes to start and clients to come back, so two of them run at a time. All others have the machine to
 * themselves: they hold times, memory or fsyncs to a bound, or must see a fault that was planted.
 */
const SIDE_BY_SIDE = ['claims', 'disk-full', 'drain', 'kill-server', 'mix', 'pooler', 'two-servers'].map(
  (name) => `test/faults/${name}.test.ts`,
);

const { globalSetup, ...each } = { ...shared, testTimeout: 300_000 };

/** `npm run test:faults`: kills, cuts and full disks. */
export default defineConfig({
  test: {
    ...each,
    globalSetup,
    projects: [
      { test: { ...each, name: 'side by side', include: SIDE_BY_SIDE, maxWorkers: 2, sequence: { groupOrder: 1 } } },
      {
        test: {
          ...each,
          name: 'alone',
          include: ['test/faults/**/*.test.ts'],
          exclude: SIDE_BY_SIDE,
          fileParallelism: false,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});
