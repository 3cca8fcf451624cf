import { defineConfig } from 'vitest/config';
import { shared } from '../test/support/vitest-shared.ts';

/** `npm run test:integrations`: savers and sessions, with the frameworks, which are installed first. */
export default defineConfig({
  test: {
    ...shared,
    include: ['integrations/test/**/*.test.ts'],
    globalSetup: ['integrations/test/install_frameworks.ts', ...shared.globalSetup],
    // The validation suite of LangGraph.js takes the functions of vitest from there.
    globals: true,
  },
});
