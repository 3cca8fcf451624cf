/**
 * Test files that measure the memory of their own process. Each runs in a process of its own, without the memory of
 * other files.
 */
export const MEASURES_MEMORY: readonly string[] = [
  'test/store/freed_bytes.test.ts',
  'test/store/state.test.ts',
  'test/store/state_cache_bytes.test.ts',
  'test/store/zstd_bombs.test.ts',
  'test/wire/hostile.test.ts',
  'test/wire/large_states.test.ts',
];
