import { defineConfig } from 'vitest/config';
import { MEASURES_MEMORY } from './test/support/measures-memory.ts';
import { shared } from './test/support/vitest-shared.ts';

/**
 * Files that send no statement of the store that the others do not send, too. They send them in other orders and with
 * other values, which depends less on the version of Postgres than it costs.
 */
const SENT_BY_OTHERS = [
  'append',
  'archived_prunings',
  'change',
  'claim_start',
  'database_down',
  'deletion_races',
  'folded_states',
  'model',
  'purge',
  'retry_delay',
  'rollout_deletion',
  'sibling_policy',
  'small_states',
  'state_chains',
  'state_collection',
  'statements',
].map((name) => `test/store/${name}.test.ts`);

/** Every statement of the store and its plan, on the Postgres of TEST_DATABASE_URL: `.ci/run` starts an old one. */
export default defineConfig({
  test: {
    ...shared,
    isolate: false,
    include: ['test/store/**/*.test.ts'],
    exclude: [...SENT_BY_OTHERS, ...MEASURES_MEMORY],
    testNamePattern: /on postgres/,
  },
});
