import { availableParallelism } from 'node:os';
import process from 'node:process';
import { defineConfig } from 'vitest/config';
import { MEASURES_MEMORY } from './test/support/measures-memory.ts';
import { shared } from './test/support/vitest-shared.ts';

const { globalSetup, sequence, ...each } = {
  ...shared,
  // Two more than there are cores: tests that wait for processes and timers leave their core to others. Each worker has
  // up to 1 GiB.
  maxWorkers: Math.max(2, Math.min(availableParallelism() + 2, Math.floor(process.availableMemory() / 2 ** 30))),
};

/** `npm test`: everything that needs nothing but Node and npm. */
export default defineConfig({
  test: {
    ...each,
    globalSetup: ['test/support/memory-folder.ts', ...globalSetup, 'test/support/whole_run.ts'],
    sequence,
    projects: [
      {
        test: {
          ...each,
          name: 'shared process',
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
          include: ['test/**/*.test.ts'],
          exclude: [
            'test/languages/**',
            'test/faults/**',
            'test/package/**',
            'test/browser/**',
            'test/browser-faults/**',
            'test/conformance/**',
            'test/python-faults/**',
            ...MEASURES_MEMORY,
          ],
        },
      },
      { test: { ...each, name: 'own process', include: [...MEASURES_MEMORY] } },
    ],
  },
});
