import { LongestFirst } from './longest-first.ts';

/** What all vitest configurations have in common. */
export const shared = {
  // Processes, not threads: tests send signals, open native database handles and must not share a crash.
  pool: 'forks' as const,
  // One for each core.
  maxWorkers: '100%',
  sequence: { sequencer: LongestFirst },
  globalSetup: ['test/support/global-setup.ts'],
  setupFiles: ['test/support/fast-check-seed.ts'],
  // Far above what any test takes alone: a busy machine must not turn a test red.
  testTimeout: 60_000,
  hookTimeout: 120_000,
  teardownTimeout: 30_000,
  expect: { poll: { timeout: 30_000 } },
  allowOnly: false,
  passWithNoTests: false,
};
