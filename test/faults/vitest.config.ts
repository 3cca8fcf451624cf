import process from 'node:process';
import { defineConfig } from 'vitest/config';
import { LARGE_DOSES } from '../support/dose.ts';
import { shared } from '../support/vitest-shared.ts';

/** TEST_DOSE=usual makes the suite a third as long: fewer kills, cuts and frames, and nothing that `npm test` has. */
const DOSE = process.env.TEST_DOSE ?? 'large';

/**
 * Tests that count what happened, or measure only their own process: other work on the machine only adds to what they
 * go through. They mostly wait for processes to start and for clients to reconnect, so three of them run at a time. All
 * others check times against a bound, so nothing else may keep the machine busy: how long callers wait while Postgres
 * is away, or while other clients attack the server or never read.
 */
const SIDE_BY_SIDE = [
  'archive',
  'background-full',
  'backup',
  'claims',
  'controls/controls',
  'disk-full',
  'documented-restore',
  'drain',
  'failover',
  'kill-collection',
  'kill-creation',
  'kill-migration',
  'kill-policy',
  'kill-retention',
  'kill-server',
  'kill-vacuum',
  'memory',
  'migration-full',
  'mix',
  'mutated-archives',
  'pooled-migration',
  'pooler',
  'power-loss',
  'previous-release',
  'restored',
  'retention-full',
  'several-servers',
  'small-heap',
].map((name) => `test/faults/${name}.test.ts`);

/** Tests that mostly wait, for the ends of deadlines, drains and silences. */
const WAITING = 'test/waiting/**/*.test.ts';

/** Large doses of tests of `npm test`, and nothing else. */
const LARGE_ONLY = ['step-pass', 'writer-model'].map((name) => `test/faults/${name}.test.ts`);

/** Tests of the page that `npm run test:page` runs in one theme only, or with fewer windows and cuts. */
const LARGE_PAGE = ['test/browser/live.test.ts', 'test/browser/page.test.ts', 'test/browser/reference.test.ts'];

/** The page in both browsers on both engines. `npm run test:page` has Chromium on SQLite. */
const BROWSERS = 'test/browser-faults/**/*.test.ts';

/** The large doses of faults of the Python client, which run in pytest. CI runs the usual ones by themselves. */
const PYTHON = ['test/python-faults/**/*.test.ts'];

const { globalSetup, ...each } = { ...shared, testTimeout: 900_000, env: { TEST_DOSE: DOSE } };

/** `npm run test:faults`: kills, cuts, full disks and long waits, and large doses of tests of `npm test`. */
export default defineConfig({
  test: {
    ...each,
    globalSetup: [...globalSetup, 'test/faults/global-setup.ts'],
    projects: [
      {
        test: {
          ...each,
          name: 'side by side',
          include: [...SIDE_BY_SIDE, WAITING, ...(DOSE === 'large' ? LARGE_ONLY : [])],
          // A worker process runs many files one after another, so it loads the modules of the project once.
          isolate: false,
          maxWorkers: 3,
          sequence: { groupOrder: 1 },
        },
      },
      ...(DOSE === 'large'
        ? [
            // Each in a process of its own: some measure their memory.
            {
              test: {
                ...each,
                name: 'large doses',
                include: [...LARGE_DOSES],
                maxWorkers: 3,
                sequence: { groupOrder: 1 },
              },
            },
            {
              test: {
                ...each,
                name: 'page',
                include: LARGE_PAGE,
                globalSetup: ['test/browser/global_setup.ts'],
                isolate: false,
                maxWorkers: 1,
                sequence: { groupOrder: 3 },
              },
            },
            { test: { ...each, name: 'python', include: PYTHON, sequence: { groupOrder: 4 } } },
          ]
        : []),
      {
        test: {
          ...each,
          name: 'alone',
          include: ['test/faults/**/*.test.ts', ...(DOSE === 'large' ? [BROWSERS] : [])],
          exclude: [...SIDE_BY_SIDE, ...LARGE_ONLY],
          isolate: false,
          fileParallelism: false,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});
