import process from 'node:process';

/** Test files that take a larger dose of their work in the fault suite. */
export const LARGE_DOSES: readonly string[] = [
  'test/rpc/screen.test.ts',
  'test/rpc/step_pass.test.ts',
  'test/service/deep_lineage.test.ts',
  'test/store/branch_depth.test.ts',
  'test/store/deletion_races.test.ts',
  'test/store/metric.test.ts',
  'test/store/model.test.ts',
  'test/store/pass_at.test.ts',
  'test/store/progress.test.ts',
  'test/store/run_deletion_races.test.ts',
  'test/store/sibling_policy.test.ts',
  'test/store/state_chains.test.ts',
  'test/store/state_collection.test.ts',
  'test/store/state_pieces.test.ts',
  'test/store/state_refs.test.ts',
  'test/store/step_list_model.test.ts',
  'test/store/summary.test.ts',
  'test/store/usage.test.ts',
  'test/store/verification.test.ts',
  'test/wire/large_states.test.ts',
  'test/wire/unread_answers.test.ts',
  'test/wire/watch_run.test.ts',
];

/**
 * The usual dose of a test, or the large one, which `npm run test:faults` takes unless TEST_DOSE=usual. CI takes the
 * usual one everywhere.
 */
export function dose<T>(usual: T, large: T): T {
  return process.env.TEST_DOSE === 'large' ? large : usual;
}
