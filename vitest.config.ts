import { defineConfig } from 'vitest/config';
import { shared } from './test/support/vitest-shared.ts';

/** `npm test`: everything that needs nothing but Node and npm. */
export default defineConfig({
  test: {
    ...shared,
    globalSetup: ['test/support/memory-folder.ts', ...shared.globalSetup],
    include: ['test/**/*.test.ts'],
    exclude: ['test/languages/**', 'test/faults/**', 'test/package/**'],
  },
});
