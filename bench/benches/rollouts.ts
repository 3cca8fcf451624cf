import {
  ClaimRolloutsRequestSchema,
  ListGroupsRequestSchema,
  ListRolloutsRequestSchema,
  ReadRolloutsRequestSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { GetRunRequestSchema, SummarizeRequestSchema, SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { WatchRequestSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { ReadStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { alternate, type Bench, compare, figure, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { ClaimsFigures, ClaimsSettings } from '../programs/claims.ts';
import type { RolloutSqlFigures, RolloutSqlSettings } from '../programs/rollout_sql.ts';
import { encoded, measureEmptyCall, measureRpc, measureUseCase } from './rpc_latency.ts';

const WORKERS = 32;
export const QUEUED = 100_000;

export const claims: Bench = {
  names: ['claims', 'claims-calls'],
  about:
    'claims/s of 32 workers, 100,000 queued; against the least claim by the driver: one row locked, moved, committed; and calls/s that do nothing',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const queue = await queueOf(run, QUEUED);
    const samples = await alternate(run, {
      claims: () => queue.claim(QUEUED / 2),
      driver: () => queue.bare(QUEUED / 2),
      'calls that do nothing': () => queue.call(),
    });
    const note = `${WORKERS} workers`;
    return [
      compare(run, { bench: 'claims', aim: '>= 0.4', unit: 'claims/s', note }, samples.claims, samples.driver),
      figure(run, { bench: 'claims-calls', unit: 'calls/s', note }, samples['calls that do nothing']),
    ];
  },
};

const SHALLOW = 1000;
const DEEP = 1_000_000;

export const claimsDepth: Bench = {
  names: ['claims-depth'],
  about: 'claims/s of 32 workers with 1,000,000 queued; against the same with 1,000',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const [shallow, deep] = [await queueOf(run, SHALLOW), await queueOf(run, DEEP)];
    const samples = await alternate(run, {
      deep: () => deep.claim(SHALLOW * 0.9),
      shallow: () => shallow.claim(SHALLOW * 0.9),
    });
    return [compare(run, { bench: 'claims-depth', aim: '>= 0.8', unit: 'claims/s' }, samples.deep, samples.shallow)];
  },
};

/** Creates a database with this many PENDING rollouts in one stage, and programs that claim them. */
export async function queueOf(run: Run, count: number) {
  const creating = await run.resources.server('real', run.engine);
  const { stageIds } = await creating.stages();
  const { database } = creating;
  await creating.stop();
  run.showProgress(`queueing ${count} rollouts`);
  await rolloutSql(run, database, { name: 'fill', count, as: 'queued' });
  const init = { stageId: stageIds[0]!, workerId: 'w', leaseDuration: { seconds: 80_000n } };
  const request = encoded(ClaimRolloutsRequestSchema, init);
  const { warmupSeconds, seconds } = run;
  const claim = async (putBackAfter: number, service?: ClaimsSettings['service']) => {
    const common = { database, workers: WORKERS, putBackAfter, warmupSeconds, seconds };
    const settings: ClaimsSettings = service === undefined ? common : { ...common, service };
    return (await runProgram<ClaimsFigures>('claims', settings)).perSecond;
  };
  return {
    bare: (putBackAfter: number) => claim(putBackAfter),
    /** Measures what the wire alone allows. */
    async call() {
      const server = await run.resources.server('null', run.engine);
      try {
        return await claim(Number.MAX_SAFE_INTEGER, { address: server.address, request: '' });
      } finally {
        await server.stop();
      }
    },
    async claim(putBackAfter: number, settings: { readonly keyFile?: string } = {}) {
      const server = await run.resources.server('real', run.engine, database, settings);
      try {
        const { address, token } = server;
        return await claim(putBackAfter, { address, token, request });
      } finally {
        await server.stop();
      }
    },
  };
}

const ROLLOUTS = 100_000;
const LIVE = 200;

/** Creates a run of 100,000 ended rollouts and some live ones. */
async function bigRun(run: Run) {
  const server = await run.resources.server('real', run.engine);
  const { runId, stageIds } = await server.stages();
  const { database } = server;
  await server.stop();
  run.showProgress(`creating ${ROLLOUTS} rollouts`);
  await rolloutSql(run, database, { name: 'fill', count: ROLLOUTS, as: 'done' });
  const reopened = await run.resources.server('real', run.engine, database);
  await reopened.liveRollouts(stageIds.at(-1)!, LIVE, 3);
  await reopened.stop();
  return { database, runId, stageIds };
}

export const rolloutList: Bench = {
  names: ['rollout-list', 'rollout-list-local'],
  about:
    'p50 of a page of 50 rollouts and of 50 groups with statistics, among 100,000 rollouts; against its SQL by hand; and the same without the wire',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { database, runId, stageIds } = await bigRun(run);
    const list = await measureRpc(run, database, 'RolloutService/ListRollouts', ListRolloutsRequestSchema, {
      runId,
      pageSize: 50,
    });
    const groups = await measureRpc(run, database, 'RolloutService/ListGroups', ListGroupsRequestSchema, {
      stageId: stageIds[0]!,
      pageSize: 50,
    });
    const local = measureUseCase(run, database, { name: 'list-rollouts', runId, stageId: stageIds[0]! });
    const least = measureEmptyCall(run);
    const samples = await alternate(run, {
      'two pages': async () => (await list.p50()) + (await groups.p50()),
      'without the wire': local.p50,
      'a call that does nothing': least.p50,
      'by hand': async () => (await rolloutSql(run, database, { name: 'list' })).p50Ms,
    });
    const note = `${list.note()} + ${groups.note()}; ${least.note()}`;
    const about = { aim: '<= 2', unit: 'ms' };
    return [
      compare(run, { ...about, bench: 'rollout-list', note }, samples['two pages'], samples['by hand']),
      compare(run, { ...about, bench: 'rollout-list-local' }, samples['without the wire'], local.byHand),
    ];
  },
};

const WATCHED = 20_000;

export const watchRun: Bench = {
  names: ['watch-run'],
  about:
    'p50 of a Watch of a COMPLETED run of 20,000 rollouts, from the call to its end after the snapshot; against all its rows by SQL by hand',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const filling = await run.resources.server('real', run.engine);
    const { runId } = await filling.stages();
    const { database } = filling;
    await filling.stop();
    run.showProgress(`creating ${WATCHED} rollouts`);
    await rolloutSql(run, database, { name: 'fill', count: WATCHED, as: 'done' });
    const ending = await run.resources.server('real', run.engine, database);
    await ending.completeRun(runId);
    await ending.stop();
    const subjects = { it: { run: { runId, allStages: true, rollouts: true, untilTerminal: true } } };
    const watched = await measureRpc(run, database, 'ServerService/Watch', WatchRequestSchema, { subjects });
    const samples = await alternate(run, {
      Watch: watched.p50,
      'by hand': async () => {
        const { p50Ms, rows } = await rolloutSql(run, database, { name: 'snapshot' });
        if (rows < WATCHED) throw new Error(`the run has ${rows} rows`);
        return p50Ms;
      },
    });
    const note = watched.note();
    return [compare(run, { bench: 'watch-run', unit: 'ms', note }, samples.Watch, samples['by hand'])];
  },
};

export const progress: Bench = {
  names: ['progress', 'progress-local', 'summarize', 'summarize-local'],
  about:
    'p50 of GetRun with progress of a run of 100,000 rollouts, 200 live (aim: <= 10 ms), and of Summarize of them by task and model; against their SQL by hand; and the same without the wire',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { database, runId } = await bigRun(run);
    const got = await measureRpc(run, database, 'RunService/GetRun', GetRunRequestSchema, { runId, progress: true });
    const summed = await measureRpc(run, database, 'RunService/Summarize', SummarizeRequestSchema, {
      runIds: [runId],
      dimensions: [{ key: SummaryKey.TASK }, { label: 'model' }],
      passAt: [1, 8],
    });
    const progressLocal = measureUseCase(run, database, { name: 'progress', runId });
    const summaryLocal = measureUseCase(run, database, { name: 'summarize', runId });
    const least = measureEmptyCall(run);
    const samples = await alternate(run, {
      GetRun: got.p50,
      'progress without the wire': progressLocal.p50,
      'progress by hand': async () => (await rolloutSql(run, database, { name: 'progress' })).p50Ms,
      Summarize: summed.p50,
      'summary without the wire': summaryLocal.p50,
      'summary by hand': async () => (await rolloutSql(run, database, { name: 'summarize' })).p50Ms,
      'a call that does nothing': least.p50,
    });
    const about = (bench: string, note = '') => ({ bench, aim: '<= 1.5', unit: 'ms', ...(note && { note }) });
    const progressNote = `${got.note()}; ${least.note()}`;
    const { 'progress by hand': progressByHand, 'summary by hand': summaryByHand } = samples;
    return [
      compare(run, about('progress', progressNote), samples.GetRun, progressByHand),
      compare(run, about('progress-local'), samples['progress without the wire'], progressLocal.byHand),
      compare(run, about('summarize', summed.note()), samples.Summarize, summaryByHand),
      compare(run, about('summarize-local'), samples['summary without the wire'], summaryLocal.byHand),
    ];
  },
};

const READ = 200;
const TURNS = 99;

export const readRollouts: Bench = {
  names: ['read-rollouts'],
  about:
    'steps/s of ReadRollouts of 200 rollouts of 99 turns; against ReadSteps of their trajectories, one after the other',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.resources.server('real', run.engine);
    const { stageIds } = await writing.stages();
    run.showProgress(`creating ${READ} rollouts`);
    const trajectories = await writing.completedRollouts(stageIds[0]!, READ, TURNS);
    const { database } = writing;
    await writing.stop();
    const whole = await measureRpc(run, database, 'RolloutService/ReadRollouts', ReadRolloutsRequestSchema, {
      stageId: stageIds[0]!,
    });
    const [first, ...more] = trajectories.map((trajectoryId) => ({ trajectoryId }));
    const single = await measureRpc(run, database, 'TrajectoryService/ReadSteps', ReadStepsRequestSchema, first!, {
      furtherRequests: more.map((init) => encoded(ReadStepsRequestSchema, init)),
    });
    const perSecond = (ms: number) => (READ * (TURNS + 1) * 1000) / ms;
    const samples = await alternate(run, {
      ReadRollouts: async () => perSecond(await whole.p50()),
      ReadSteps: async () => perSecond(await single.p50()),
    });
    const note = `${whole.note()}; ReadSteps: ${single.note()}`;
    return [
      compare(
        run,
        { bench: 'read-rollouts', aim: '>= 0.8', unit: 'steps/s', note },
        samples.ReadRollouts,
        samples.ReadSteps,
      ),
    ];
  },
};

function rolloutSql(run: Run, database: string, task: RolloutSqlSettings['task']): Promise<RolloutSqlFigures> {
  const { warmupSeconds, seconds } = run;
  return runProgram<RolloutSqlFigures>('rollout_sql', {
    task,
    database,
    warmupSeconds,
    seconds,
  } satisfies RolloutSqlSettings);
}
