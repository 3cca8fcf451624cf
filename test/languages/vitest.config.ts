import { defineConfig } from 'vitest/config';
import { shared } from '../support/vitest-shared.ts';

/** `npm run test:languages`: clients in other languages, whose tools are installed first. */
export default defineConfig({
  test: {
    ...shared,
    include: ['test/languages/**/*.test.ts'],
    // No Postgres: clients do not see which database a server has.
    globalSetup: ['test/support/temporary-folder.ts', 'test/languages/global-setup.ts'],
    testTimeout: 120_000,
    // Python compiles each module once for all processes: images of containers often turn that off.
    env: { PYTHONDONTWRITEBYTECODE: '' },
  },
});
