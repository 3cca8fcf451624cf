import process from 'node:process';
import { defineConfig } from 'vitest/config';
import { MEASURES_MEMORY } from '../support/measures-memory.ts';
import { shared } from '../support/vitest-shared.ts';

/**
 * What could depend on the version of Postgres although each of its statements is accepted: plans, migrations, locks,
 * cancellation, values, triggers, and COPY. Chosen if STATEMENTS_EXPECTED names the statements of runs of all tests:
 * `test/conformance` then proves that this Postgres prepares and plans each of them that the chosen files do not send.
 */
const CHOSEN = [
  'bulk_rows',
  'checkpoint',
  'claim_races',
  'deletion',
  'interruption',
  'lease_cancel',
  'metric',
  'model',
  'open',
  'open_postgres',
  'rollout_plans',
  'state_refs',
  'trajectory_selection',
  'usage',
  'values',
  'visibility',
].map((name) => `test/store/${name}.test.ts`);

const { globalSetup, ...each } = shared;
const isChosen = process.env.STATEMENTS_EXPECTED !== undefined;

/** The store on the Postgres of TEST_DATABASE_URL: `.ci/run` starts an old one. */
export default defineConfig({
  test: {
    ...each,
    globalSetup,
    testNamePattern: /on postgres/,
    projects: [
      {
        test: {
          ...each,
          name: 'store',
          isolate: false,
          include: isChosen ? CHOSEN : ['test/store/**/*.test.ts'],
          exclude: [...MEASURES_MEMORY],
          sequence: { groupOrder: 1 },
        },
      },
      ...(isChosen
        ? [
            {
              test: {
                ...each,
                name: 'statements',
                include: ['test/conformance/**/*.test.ts'],
                sequence: { groupOrder: 2 },
              },
            },
          ]
        : []),
    ],
  },
});
