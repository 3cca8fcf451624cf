import process from 'node:process';

/** Test files that take a larger dose of their work in the fault suite. */
export const LARGE_DOSES: readonly string[] = [
  'test/service/deep_lineage.test.ts',
  'test/wire/large_states.test.ts',
  'test/wire/unread_answers.test.ts',
];

/** The usual dose of a test in `npm test`, and the large one in `npm run test:faults`, which sets TEST_DOSE=large. */
export function dose<T>(usual: T, large: T): T {
  return process.env.TEST_DOSE === 'large' ? large : usual;
}
