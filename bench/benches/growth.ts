import { GetStateRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { GetStepRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { alternate, type Bench, compare, type Result, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import { pause } from '../programs/program.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import type { BenchServer } from '../resources.ts';
import { ingest, SINGLE } from './ingest.ts';
import { longTrajectories } from './read.ts';
import { encoded } from './rpc_latency.ts';

const STREAMS = 4;
/** Steps of the store that reads of single steps and states are compared with. */
const FEW_STEPS = 100_000;
/** After loading: the last rows are merged, and the loaded gigabytes reach the disk. */
const SETTLE_SECONDS = 60;
/** Steps that are read in turn, all over a trajectory. Their times are added up. */
const READ_STEPS = 100;

export const growth: Bench = {
  names: ['growth', 'get-step', 'get-state'],
  about:
    'with 10 million steps stored, each with its state: ingest-single, against an empty store; 100 GetStep, and 100 GetState by reference, against a store of 100,000 steps',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run): Promise<Result[]> {
    const grown = await run.resources.server('real', run.engine);
    const few = await run.resources.server('real', run.engine);
    const empty = await run.resources.server('real', run.engine);
    const inFew = await longTrajectories(run, few, { count: STREAMS, steps: FEW_STEPS / STREAMS });
    const inGrown = await longTrajectories(run, grown, { count: STREAMS, steps: run.growthSteps / STREAMS });
    run.showProgress('waiting until it is merged and on the disk');
    await pause(SETTLE_SECONDS);
    const reads: Readonly<Record<'grown' | 'few', ReadOf>> = {
      grown: { server: grown, trajectoryId: inGrown.trajectories[0]!, steps: run.growthSteps / STREAMS },
      few: { server: few, trajectoryId: inFew.trajectories[0]!, steps: FEW_STEPS / STREAMS },
    };
    const ingested = await alternate(run, {
      grown: () => ingest(run, grown, SINGLE),
      empty: () => ingest(run, empty, SINGLE),
    });
    const steps = await alternate(run, {
      grown: () => getSteps(run, reads.grown),
      few: () => getSteps(run, reads.few),
    });
    const states = await alternate(run, {
      grown: () => getStates(run, reads.grown),
      few: () => getStates(run, reads.few),
    });
    const note = `${run.growthSteps.toLocaleString('en-US')} steps, loaded at ${Math.round(inGrown.stepsPerSecond).toLocaleString('en-US')} a second`;
    return [
      compare(run, { bench: 'growth', aim: '>= 0.9', unit: 'steps/s', note }, ingested.grown, ingested.empty),
      compare(run, { bench: 'get-step', aim: '<= 1.5', unit: 'ms' }, steps.grown, steps.few),
      compare(run, { bench: 'get-state', aim: '<= 1.5', unit: 'ms' }, states.grown, states.few),
    ];
  },
};

interface ReadOf {
  readonly server: BenchServer;
  readonly trajectoryId: string;
  /** Of the trajectory. */
  readonly steps: number;
}

interface StepRef {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
}

function getSteps(run: Run, of: ReadOf): Promise<number> {
  return readAll(run, of, '/anabranch.v1.TrajectoryService/GetStep', (step) => encoded(GetStepRequestSchema, step));
}

function getStates(run: Run, of: ReadOf): Promise<number> {
  return readAll(run, of, '/anabranch.v1.StateService/GetState', (step) =>
    encoded(GetStateRequestSchema, { reference: step }),
  );
}

/** Returns the median time of reading `READ_STEPS` steps one after the other, in milliseconds. */
async function readAll(
  { warmupSeconds, seconds }: Run,
  { server, trajectoryId, steps }: ReadOf,
  method: string,
  requestOf: (step: StepRef) => string,
): Promise<number> {
  const [request, ...furtherRequests] = Array.from({ length: READ_STEPS }, (_, i) =>
    requestOf({ trajectoryId, stepNumber: BigInt((i * 7_919_317) % steps) }),
  );
  const settings: RequestSettings = {
    address: server.address,
    method,
    request: request!,
    furtherRequests,
    warmupSeconds,
    seconds,
  };
  return (await runProgram<RequestFigures>('request', settings)).p50Ms;
}
