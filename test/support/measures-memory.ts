/** Test files that measure the memory of their own process. Each has a process to itself, without the memory of other files. */
export const MEASURES_MEMORY: readonly string[] = [
  'test/store/state.test.ts',
  'test/wire/hostile.test.ts',
  'test/wire/large_states.test.ts',
];
