import path from 'node:path';
import type { TestSpecification } from 'vitest/node';
import { BaseSequencer } from 'vitest/node';

/** Files that take longest. The list affects only the duration of a run. */
const LONG = [
  'test/wire/rpcs.test.ts',
  'test/demo/demo.test.ts',
  'test/store/held_rows.test.ts',
  'test/cli/archive.test.ts',
  'test/store/import.test.ts',
  'test/store/state_pieces.test.ts',
  'test/wire/watch_run.test.ts',
  'test/wire/large_states.test.ts',
  'test/wire/hostile.test.ts',
  'test/stream/watch.test.ts',
  'test/store/verification.test.ts',
  'test/store/branch_depth.test.ts',
  'test/store/state_chains.test.ts',
  'test/cli/serve.test.ts',
  'test/client/sending_cases.test.ts',
  'test/faults-checker/kill-server.test.ts',
  'test/docs/readme.test.ts',
  'test/faults/memory.test.ts',
  'test/faults/claims.test.ts',
  'test/faults/archive.test.ts',
  'test/faults/disk-full.test.ts',
  'test/faults/kill-server.test.ts',
  'test/faults/mix.test.ts',
  'test/faults/drain.test.ts',
  'test/faults/kill-creation.test.ts',
  // Waits for a demo, which plays meanwhile.
  'test/browser/page.test.ts',
  'test/browser/live.test.ts',
  'test/browser/bad_input.test.ts',
  'test/browser/file.test.ts',
];

/**
 * Runs the long files of each project first, so that none of them runs alone at the end; the others in their usual
 * order. On a clean checkout vitest knows no durations. Files of a project follow each other, because a process that
 * they share ends where a file of another project is next.
 */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return sorted.sort(
      (a, b) =>
        groupOf(a) - groupOf(b) || a.project.name.localeCompare(b.project.name) || this.#rank(a) - this.#rank(b),
    );
  }

  #rank({ moduleId }: TestSpecification): number {
    const found = LONG.indexOf(path.relative(this.ctx.config.root, moduleId).replaceAll(path.sep, '/'));
    return found === -1 ? LONG.length : found;
  }
}

function groupOf({ project }: TestSpecification): number {
  return project.config.sequence.groupOrder;
}
