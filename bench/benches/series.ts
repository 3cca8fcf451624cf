import { create, type DescMessage, type MessageInitShape } from '@bufbuild/protobuf';
import {
  ReadStepSeriesRequestSchema,
  SearchStepsRequestSchema,
  StepValue,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { alternate, type Bench, figure, type Result } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import { encoded } from './rpc_latency.ts';

const TRAJECTORIES = 200;
const STEPS_EACH = 1500;

export const series: Bench = {
  names: ['series', 'series-pointer', 'search'],
  about:
    'p50 of whole streams over 300,000 steps in 200 trajectories: ReadStepSeries of reward sums, and of numbers at a JSON Pointer in info_json; SearchSteps for a text that no step has',
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const server = await run.resources.server('real', run.engine);
    run.showProgress(`writing ${TRAJECTORIES * STEPS_EACH} steps`);
    const experimentId = await server.experiment(TRAJECTORIES, STEPS_EACH);
    const trajectoryIds = await server.trajectoriesOf(experimentId);
    const measure = async <Desc extends DescMessage>(rpc: string, schema: Desc, init: MessageInitShape<Desc>) => {
      const { p50Ms } = await runProgram<RequestFigures>('request', {
        address: server.address,
        method: `/anabranch.v1.TrajectoryService/${rpc}`,
        request: encoded(schema, create(schema, init) as MessageInitShape<Desc>),
        warmupSeconds: run.warmupSeconds,
        seconds: run.seconds,
      } satisfies RequestSettings);
      return p50Ms;
    };
    const info = { value: StepValue.INFO, pointer: '/observation/0' };
    const samples = await alternate(run, {
      series: () => measure('ReadStepSeries', ReadStepSeriesRequestSchema, { trajectoryIds }),
      'series-pointer': () => measure('ReadStepSeries', ReadStepSeriesRequestSchema, { trajectoryIds, ...info }),
      search: () => measure('SearchSteps', SearchStepsRequestSchema, { text: 'nowhere to be found', experimentId }),
    });
    return [
      figure(run, { bench: 'series', aim: '<= 250', unit: 'ms' }, samples.series),
      figure(run, { bench: 'series-pointer', aim: '<= 2000', unit: 'ms' }, samples['series-pointer']),
      figure(run, { bench: 'search', aim: '<= 1000', unit: 'ms' }, samples.search),
    ];
  },
};
