import type { ServiceImpl } from '@connectrpc/connect';
import { RunService as Service } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { experimentMethods } from '../service/experiment/experiment.ts';
import { runMethods } from '../service/run/run.ts';
import { summaryMethods } from '../service/run/summary.ts';
import { runVerbs } from '../service/run/verbs.ts';
import { stageMethods } from '../service/stage/stage.ts';
import { unaryMethods, type Wire } from './call.ts';
import { metricMethods } from './metric.ts';
import { watchRun } from './watch.ts';

/** The books of runs, a file a noun. */
export function runService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...unaryMethods(wire, Service, experimentMethods),
    ...unaryMethods(wire, Service, runMethods),
    ...unaryMethods(wire, Service, runVerbs),
    ...unaryMethods(wire, Service, stageMethods),
    ...metricMethods(wire),
    ...unaryMethods(wire, Service, summaryMethods),
    watchRun: watchRun(wire),
  };
}
