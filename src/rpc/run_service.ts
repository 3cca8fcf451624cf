import type { ServiceImpl } from '@connectrpc/connect';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { Wire } from './call.ts';
import { experimentMethods } from './experiment.ts';
import { metricMethods } from './metric.ts';
import { families, lives, wholeRuns } from './run.ts';
import { stageVerbs, wholeStages } from './stage.ts';
import { summaryMethods } from './summary.ts';
import { watchRun } from './watch.ts';

/** The books of runs, a file a noun. */
export function runService(wire: Wire): ServiceImpl<typeof RunService> {
  return {
    ...experimentMethods(wire),
    ...wholeRuns(wire),
    ...lives(wire),
    ...families(wire),
    ...wholeStages(wire),
    ...stageVerbs(wire),
    ...metricMethods(wire),
    ...summaryMethods(wire),
    watchRun: watchRun(wire),
  };
}
