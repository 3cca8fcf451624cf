import type { ServiceImpl } from '@connectrpc/connect';
import { RunService as Service } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { experimentMethods } from '../service/experiment/experiment.ts';
import { metricMethods } from '../service/run/metric.ts';
import { runMethods } from '../service/run/run.ts';
import { summaryMethods } from '../service/run/summary.ts';
import { runVerbs } from '../service/run/verbs.ts';
import { watchRun } from '../service/run/watch.ts';
import { stageMethods } from '../service/stage/stage.ts';
import { handlers, type Wire } from './call.ts';

/** The books of runs, a file a noun. */
export function runService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...handlers(wire, Service, experimentMethods),
    ...handlers(wire, Service, runMethods),
    ...handlers(wire, Service, runVerbs),
    ...handlers(wire, Service, stageMethods),
    ...handlers(wire, Service, metricMethods),
    ...handlers(wire, Service, summaryMethods),
    ...handlers(wire, Service, { watchRun }),
  };
}
