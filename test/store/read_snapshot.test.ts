import { expect, it, vi } from 'vitest';
import type { NewValidation, RolloutRecord } from '../../src/store/contract/rollout.ts';
import { Lease } from '../../src/store/postgres/pool.ts';
import { type ReadJob, ReadThreads } from '../../src/store/sqlite/read_threads.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';

describeStore('getRollout', (on) => {
  it.each(['attempts', 'validations'])(
    'D3: reads one snapshot: an end committed before its statement on %s runs is shown completely or not at all',
    async (table) => {
      const scene = new RolloutScene(on.store);
      const { stage } = await scene.place();
      const [id = ''] = await scene.queue(stage, 1);
      const claim = await scene.claimOne();
      await scene.start(claim);
      const end = async () => {
        await scene.complete(claim, { validations: [PASSED] });
      };
      const read = () => scene.store.getRollout(scene.namespace, id);
      const record = await changedBefore(new RegExp(`from (main\\.)?("anabranch"\\.)?"${table}"`), end, read);
      expect(['RUNNING 1 RUNNING 0', 'COMPLETED 1 COMPLETED 1']).toContain(record && outline(record));
      expect(outline((await read())!)).toBe('COMPLETED 1 COMPLETED 1');
    },
  );

  /** Runs `change` after all statements of `read` before the first one whose text matches, and before that one. */
  async function changedBefore<T>(text: RegExp, change: () => Promise<void>, read: () => Promise<T>): Promise<T> {
    let changing: Promise<void> | undefined;
    const hold = (statement: string): Promise<void> | undefined => {
      if (changing !== undefined || !text.test(statement)) return undefined;
      changing = Promise.resolve().then(change);
      return changing;
    };
    const spy = on.engine === 'postgres' ? holdStatements(hold) : holdJobs(hold);
    try {
      const result = await read();
      expect(changing).toBeDefined();
      return result;
    } finally {
      spy.mockRestore();
    }
  }
});

const PASSED: NewValidation = {
  name: 'check',
  success: true,
  advisory: false,
  query: '',
  expectedResult: '',
  actualResult: '',
  executionMs: undefined,
  errorMessage: '',
  detailsJson: '',
};

/** Statuses of the rollout and its attempt, and the number of attempts and validations listed. */
function outline({ rollout, attempts }: RolloutRecord): string {
  const [attempt] = attempts;
  return `${rollout.status} ${attempts.length} ${attempt?.status} ${attempt?.validations.length}`;
}

/** Statements of one connection keep their order: those behind a blocked one wait for it. */
function holdStatements(hold: (text: string) => Promise<void> | undefined) {
  const query = Lease.prototype.query;
  const lastOf = new WeakMap<Lease, Promise<unknown>>();
  return vi.spyOn(Lease.prototype, 'query').mockImplementation(function (this: Lease, text, values) {
    const before = lastOf.get(this) ?? Promise.resolve();
    const sent = before
      .catch(() => {})
      .then(() => hold(text))
      .then(() => query.call(this, text, values));
    lastOf.set(this, sent);
    return sent;
  });
}

function holdJobs(hold: (text: string) => Promise<void> | undefined) {
  const run = ReadThreads.prototype.run;
  return vi.spyOn(ReadThreads.prototype, 'run').mockImplementation(async function (this: ReadThreads, job, signal) {
    await hold(textOf(job));
    return run.call(this, job, signal) as never;
  });
}

function textOf(job: ReadJob): string {
  if (job.kind === 'extrema') return '';
  return job.kind === 'snapshot' ? job.statements.map(({ text }) => text).join(';') : job.text;
}
