import { GetRunTreeRequestSchema, ListRunsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { alternate, type Bench, compare, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { StoredBooksFigures, StoredBooksSettings } from '../programs/stored_books.ts';
import { asking } from './asking.ts';
import { books } from './metrics.ts';

const RUNS = 10_000;
const STAGES_EACH = 6;

export const runList: Bench = {
  names: ['run-list', 'run-list-store'],
  about:
    'p50 of a page of 50 runs with progress, among 10,000 of 6 stages each; against its SQL by hand; and the store alone, without the wire',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.place.server('real', run.engine);
    run.say(`making ${RUNS} runs`);
    await writing.runs(RUNS, { main: true });
    const { database } = writing;
    await writing.stop();
    await books(run, database, { name: 'fill-stages', each: STAGES_EACH }, true);
    const list = await asking(run, database, 'RunService/ListRuns', ListRunsRequestSchema, { pageSize: 50 });
    const samples = await alternate(run, {
      ListRuns: list.p50,
      store: () => stored(run, database, { name: 'list' }),
      'by hand': async () => (await books(run, database, { name: 'list' })).p50Ms,
    });
    return [
      compare(
        run,
        { bench: 'run-list', aim: '<= 2', unit: 'ms', note: list.note() },
        samples.ListRuns,
        samples['by hand'],
      ),
      compare(run, { bench: 'run-list-store', unit: 'ms' }, samples.store, samples['by hand']),
    ];
  },
};

const BRANCHES = 1000;

export const runTree: Bench = {
  names: ['run-tree', 'run-tree-store'],
  about:
    'p50 of GetRunTree of a root and 1,000 branches, all pages; against one SELECT of those rows; and the store alone',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.place.server('real', run.engine);
    run.say(`making ${BRANCHES} branches`);
    const runId = await writing.runTree(BRANCHES);
    const { database } = writing;
    await writing.stop();
    const tree = await asking(
      run,
      database,
      'RunService/GetRunTree',
      GetRunTreeRequestSchema,
      { runId, pageSize: 1000 },
      { pages: { next: 2, token: 3 } },
    );
    const samples = await alternate(run, {
      GetRunTree: tree.p50,
      store: () => stored(run, database, { name: 'tree', runId }),
      'one SELECT': async () => {
        const { p50Ms, rows } = await books(run, database, { name: 'tree', runId });
        if (rows !== BRANCHES + 1) throw new Error(`the tree has ${rows} rows`);
        return p50Ms;
      },
    });
    return [
      compare(
        run,
        { bench: 'run-tree', aim: '<= 2', unit: 'ms', note: tree.note() },
        samples.GetRunTree,
        samples['one SELECT'],
      ),
      compare(run, { bench: 'run-tree-store', unit: 'ms' }, samples.store, samples['one SELECT']),
    ];
  },
};

async function stored(run: Run, database: string, task: StoredBooksSettings['task']): Promise<number> {
  const { warmupSeconds, seconds } = run;
  const settings: StoredBooksSettings = { task, database, warmupSeconds, seconds };
  return (await runProgram<StoredBooksFigures>('stored_books', settings)).p50Ms;
}
