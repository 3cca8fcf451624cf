import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { ClaimRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { HeartbeatRunRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { WatchRequestSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { ReadStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { alternate, type Bench, compare, figure, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { WaitingFigures, WaitingSettings } from '../programs/waiting.ts';
import type { BenchServer } from '../resources.ts';
import { ingest, SINGLE } from './ingest.ts';

function encoded<Desc extends DescMessage>(schema: Desc, init: MessageInitShape<Desc>): string {
  return Buffer.from(toBinary(schema, create(schema, init))).toString('base64');
}

type Waits = Pick<WaitingSettings, 'method' | 'requests' | 'answers' | 'beside'>;

function wait(run: Run, { address, pids, database }: BenchServer, waits: Waits): Promise<WaitingFigures> {
  const { warmupSeconds, seconds } = run;
  return runProgram<WaitingFigures>('waiting', { address, pids, database, ...waits, warmupSeconds, seconds });
}

/** Measures those who wait on a server, in each round. */
async function measured(run: Run, server: BenchServer, waits: Waits) {
  const all: WaitingFigures[] = [];
  await alternate(run, {
    waiting: async () => {
      all.push(await wait(run, server, waits));
      return all.at(-1)!.cores;
    },
  });
  const of = (name: keyof WaitingFigures) => all.map((each) => each[name]);
  return { cores: of('cores'), transactions: of('transactionsPerSecond'), kib: of('kibEach') };
}

export const idleFollowers: Bench = {
  names: ['idle-followers', 'idle-followers-transactions', 'idle-followers-memory'],
  about: 'cores of server and database while 1,000 followers follow 1,000 trajectories that do not change',
  engines: ['postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    run.showProgress('creating 1,000 trajectories');
    const ids = await server.trajectories(1000);
    const requests = ids.map((trajectoryId) => encoded(ReadStepsRequestSchema, { trajectoryId, follow: true }));
    const method = '/anabranch.v1.TrajectoryService/ReadSteps';
    const { cores, transactions, kib } = await measured(run, server, { method, requests, answers: true });
    return [
      figure(run, { bench: 'idle-followers', aim: '<= 0.03', unit: 'cores' }, cores),
      figure(run, { bench: 'idle-followers-transactions', aim: '<= 5', unit: '/s' }, transactions),
      figure(run, { bench: 'idle-followers-memory', aim: '<= 60', unit: 'KiB each' }, kib),
    ];
  },
};

const CLAIM = { workerId: 'w', wait: { seconds: 30n }, leaseDuration: { seconds: 60n } };
const CLAIMS: Waits = {
  method: '/anabranch.v1.RolloutService/ClaimRollouts',
  requests: Array<string>(256).fill(encoded(ClaimRolloutsRequestSchema, CLAIM)),
  answers: false,
};

export const waitingClaims: Bench = {
  names: ['waiting-claims', 'waiting-claims-transactions'],
  about: 'cores of server and database while 256 claims wait for rollouts of any run',
  engines: ['postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    await server.stages();
    const { cores, transactions } = await measured(run, server, CLAIMS);
    return [
      figure(run, { bench: 'waiting-claims', aim: '<= 0.03', unit: 'cores' }, cores),
      figure(run, { bench: 'waiting-claims-transactions', unit: '/s' }, transactions),
    ];
  },
};

export const besideWaitingClaims: Bench = {
  names: ['ingest-beside-claims'],
  about: 'acked steps/s of ingest-single while 256 claims wait for rollouts of any run; against the same without',
  engines: ['postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    await server.stages();
    const samples = await alternate(run, {
      claims: async () => (await Promise.all([ingest(run, server, SINGLE), wait(run, server, CLAIMS)]))[0],
      alone: () => ingest(run, server, SINGLE),
    });
    const row = { bench: 'ingest-beside-claims', aim: '>= 0.95', unit: 'steps/s' } as const;
    return [compare(run, row, samples.claims, samples.alone)];
  },
};

export const watchers: Bench = {
  names: ['watchers'],
  about: 'cores of server and database for 100 watchers of a run that changes 100 times a second; against one watcher',
  engines: ['postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const { runId } = await server.stages();
    const request = encoded(WatchRequestSchema, { subjects: { run: { run: { runId } } } });
    const beat = encoded(HeartbeatRunRequestSchema, { runId });
    const waits = (count: number): Waits => ({
      method: '/anabranch.v1.ServerService/Watch',
      requests: Array<string>(count).fill(request),
      answers: true,
      beside: { method: '/anabranch.v1.RunService/HeartbeatRun', request: beat, perSecond: 100 },
    });
    const samples = await alternate(run, {
      many: async () => (await wait(run, server, waits(100))).cores,
      one: async () => (await wait(run, server, waits(1))).cores,
    });
    return [compare(run, { bench: 'watchers', aim: '<= 3', unit: 'cores' }, samples.many, samples.one)];
  },
};
