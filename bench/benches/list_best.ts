import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { ListStepsRequestSchema, StepOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { alternate, type Bench, compare, figure, type Result } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import { type Ingested, ingest, type Load } from './ingest.ts';
import { encoded } from './rpc_latency.ts';

const TRAJECTORIES = 5000;
const STEPS_EACH = 200;
/** Bound of the slowest append, in milliseconds above the slowest append without lists. */
const MORE_MS = 50;

const WRITER: Load = { streams: 1, connections: 1, window: 1, stepsPerFrame: 1, payload: 'step-with-state' };

export const listBest: Bench = {
  names: ['list-best', 'list-best-writer', 'list-best-writer-slowest'],
  about:
    'p50 of ListSteps: the 5 steps with the best rewards of 1,000,000 steps in 5,000 trajectories of an experiment, beside a writer. And appends/s of this writer, which waits for each ack, and its slowest append; against the same writer alone, and 50 ms more than its slowest alone',
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const server = await run.resources.server('real', run.engine);
    run.showProgress(`writing ${TRAJECTORIES * STEPS_EACH} steps`);
    const experimentId = await server.experiment(TRAJECTORIES, STEPS_EACH);
    const { warmupSeconds, seconds } = run;
    const lists: RequestFigures[] = [];
    const slowest: Record<'alone' | 'beside', number[]> = { alone: [], beside: [] };
    const seen =
      (name: keyof typeof slowest) =>
      ({ maxMs }: Ingested) => {
        slowest[name].push(maxMs[0]!);
      };
    const best = {
      experimentId,
      order: StepOrder.REWARD,
      descending: true,
      pageSize: 5,
      view: View.FULL,
    };
    const settings: RequestSettings = {
      address: server.address,
      method: '/anabranch.v1.TrajectoryService/ListSteps',
      request: encoded(ListStepsRequestSchema, best),
      warmupSeconds,
      seconds,
    };
    const samples = await alternate(run, {
      alone: () => ingest(run, server, WRITER, { seen: seen('alone') }),
      'beside lists': () =>
        ingest(run, server, WRITER, {
          seen: seen('beside'),
          async meanwhile() {
            lists.push(await runProgram<RequestFigures>('request', settings));
          },
        }),
    });
    const note = `${lists[0]?.repetitions ?? 0} lists in ${seconds} s`;
    const bound = Math.max(...slowest.alone) + MORE_MS;
    return [
      figure(
        run,
        { bench: 'list-best', aim: '<= 20', unit: 'ms', note },
        lists.map(({ p50Ms }) => p50Ms),
      ),
      compare(
        run,
        { bench: 'list-best-writer', aim: '>= 0.5', unit: 'appends/s' },
        samples['beside lists'],
        samples.alone,
      ),
      compare(
        run,
        { bench: 'list-best-writer-slowest', aim: '<= 1', unit: 'ms' },
        [Math.max(...slowest.beside)],
        [bound],
      ),
    ];
  },
};
