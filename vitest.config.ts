import { availableParallelism } from 'node:os';
import { matchesGlob } from 'node:path';
import process from 'node:process';
import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';
import { MEASURES_MEMORY } from './test/support/measures-memory.ts';
import { shared } from './test/support/vitest-shared.ts';

const { globalSetup, sequence, ...each } = {
  ...shared,
  // Two more than there are cores: tests that wait for processes and timers leave their core to others. Each worker has
  // up to 1 GiB.
  maxWorkers: Math.max(2, Math.min(availableParallelism() + 2, Math.floor(process.availableMemory() / 2 ** 30))),
};

/** Folders of other commands. */
const ELSEWHERE = [
  'languages',
  'faults',
  'waiting',
  'package',
  'browser',
  'browser-faults',
  'conformance',
  'python-faults',
].map((folder) => `test/${folder}/**`);
const STORE = 'test/store/**';
const CALLS = 'test/wire/**';

/** The engines of the tests: ENGINES, in test/support/database.ts. */
const ON_SQLITE = { TEST_ENGINES: 'sqlite' };
const ON_BOTH = { TEST_ENGINES: 'sqlite,postgres' };

/** The projects of these files: most share processes, and some measure the memory of their own. */
function projects(
  name: string,
  include: string,
  exclude: readonly string[],
  env: Readonly<Record<string, string>>,
): TestProjectInlineConfiguration[] {
  const measuring = MEASURES_MEMORY.filter(
    (file) => matchesGlob(file, include) && !exclude.some((each) => matchesGlob(file, each)),
  );
  return [
    {
      test: {
        ...each,
        name,
        env,
        include: [`${include}/*.test.ts`],
        exclude: [...exclude, ...MEASURES_MEMORY],
        // A worker process runs many files one after another, so it loads the modules of the project once.
        isolate: false,
        // Memory saves CPU time here. Young objects have 64 MiB, so the collector seldom copies those that live. Old
        // ones have 600 MiB before it searches them, however many buffers a test allocates.
        execArgv: [
          '--max-semi-space-size=64',
          '--initial-old-space-size=600',
          '--external-memory-accounted-in-global-limit',
          '--external-memory-max-growing-factor=4',
          '--no-memory-reducer',
        ],
      },
    },
    { test: { ...each, name: `memory of ${name}`, env, include: measuring } },
  ];
}

const setups = ['test/support/memory-folder.ts', ...globalSetup, 'test/support/whole_run.ts'];
const NOT_ELSE = [STORE, ...ELSEWHERE];

/** `npm test`: all tests that need nothing but Node and npm, `test/store` on both engines, everything else on SQLite. */
const usual = {
  globalSetup: [...setups, 'test/support/told_engines.ts'],
  projects: [
    ...projects('the store', STORE, [], ON_BOTH),
    ...projects('everything else', 'test/**', NOT_ELSE, ON_SQLITE),
  ],
};

/**
 * `npm run test:postgres`: the tests that `npm test` leaves out, which are those of everything else on Postgres. CI runs
 * the calls through a pooler.
 */
const onPostgres = {
  globalSetup: setups,
  testNamePattern: /on postgres/i,
  projects: [
    ...projects('calls', CALLS, [], ON_BOTH),
    ...projects('everything else', 'test/**', [CALLS, ...NOT_ELSE], ON_BOTH),
  ],
};

export default defineConfig(({ mode }) => ({
  test: { ...each, sequence, ...(mode === 'postgres' ? onPostgres : usual) },
}));
