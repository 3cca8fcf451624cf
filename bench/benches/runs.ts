import { GetRunTreeRequestSchema, ListRunsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { alternate, type Bench, compare } from '../bench.ts';
import { runSql } from './metrics.ts';
import { measureEmptyCall, measureRpc, measureUseCase } from './rpc_latency.ts';

const about = { aim: '<= 2', unit: 'ms' };
const RUNS = 10_000;
const STAGES_EACH = 6;

export const runList: Bench = {
  names: ['run-list', 'run-list-local'],
  about:
    'p50 of a page of 50 runs with progress, among 10,000 of 6 stages each; against its SQL by hand; and the same without the wire',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.resources.server('real', run.engine);
    run.showProgress(`creating ${RUNS} runs`);
    await writing.runs(RUNS, { main: true });
    const { database } = writing;
    await writing.stop();
    await runSql(run, database, { name: 'fill-stages', each: STAGES_EACH }, true);
    const list = await measureRpc(run, database, 'RunService/ListRuns', ListRunsRequestSchema, { pageSize: 50 });
    const local = measureUseCase(run, database, { name: 'list-runs' });
    const least = measureEmptyCall(run);
    const samples = await alternate(run, {
      ListRuns: list.p50,
      'without the wire': local.p50,
      'a call that does nothing': least.p50,
      'by hand': async () => (await runSql(run, database, { name: 'list' })).p50Ms,
    });
    return [
      compare(
        run,
        { ...about, bench: 'run-list', note: `${list.note()}; ${least.note()}` },
        samples.ListRuns,
        samples['by hand'],
      ),
      compare(run, { ...about, bench: 'run-list-local' }, samples['without the wire'], local.byHand),
    ];
  },
};

const BRANCHES = 1000;

export const runTree: Bench = {
  names: ['run-tree', 'run-tree-local'],
  about:
    'p50 of GetRunTree of a root and 1,000 branches, all pages; against one SELECT of those rows; and the same without the wire',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.resources.server('real', run.engine);
    run.showProgress(`creating ${BRANCHES} branches`);
    const runId = await writing.runTree(BRANCHES);
    const { database } = writing;
    await writing.stop();
    const tree = await measureRpc(
      run,
      database,
      'RunService/GetRunTree',
      GetRunTreeRequestSchema,
      { runId, pageSize: 1000 },
      { pages: { next: 2, token: 3 } },
    );
    const local = measureUseCase(run, database, { name: 'run-tree', runId });
    const least = measureEmptyCall(run);
    const samples = await alternate(run, {
      GetRunTree: tree.p50,
      'without the wire': local.p50,
      'a call that does nothing': least.p50,
      'one SELECT': async () => {
        const { p50Ms, rows } = await runSql(run, database, { name: 'tree', runId });
        if (rows !== BRANCHES + 1) throw new Error(`the tree has ${rows} rows`);
        return p50Ms;
      },
    });
    return [
      compare(
        run,
        { ...about, bench: 'run-tree', note: `${tree.note()}; ${least.note()}` },
        samples.GetRunTree,
        samples['one SELECT'],
      ),
      compare(run, { ...about, bench: 'run-tree-local' }, samples['without the wire'], local.byHand),
    ];
  },
};
