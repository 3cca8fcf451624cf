import process from 'node:process';
import { LongestFirst } from './longest-first.ts';

/** Settings that all vitest configurations share. */
export const shared = {
  // Processes, not threads: tests send signals, open native database handles, and must not crash together.
  pool: 'forks' as const,
  // One for each core.
  maxWorkers: '100%',
  sequence: { sequencer: LongestFirst },
  globalSetup: ['test/support/global-setup.ts'],
  setupFiles: [
    'test/support/fast-check-seed.ts',
    ...(process.env.STATEMENTS_SENT === undefined ? [] : ['test/support/sent_statements.ts']),
  ],
  // Far above the duration of any test: one of seconds takes minutes on a busy machine, and must not fail.
  testTimeout: 300_000,
  hookTimeout: 300_000,
  teardownTimeout: 30_000,
  expect: { poll: { timeout: 120_000 } },
  allowOnly: false,
  passWithNoTests: false,
};
