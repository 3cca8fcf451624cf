import type { ServiceImpl } from '@connectrpc/connect';
import { TrajectoryService as Service } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendSteps } from '../service/trajectory/append.ts';
import { readSteps } from '../service/trajectory/read.ts';
import { stepMethods } from '../service/trajectory/step.ts';
import { tagMethods } from '../service/trajectory/tag.ts';
import { trajectoryMethods } from '../service/trajectory/trajectory.ts';
import { handlers, type Wire } from './call.ts';

/** Trajectories and their steps. */
export function trajectoryService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...handlers(wire, Service, trajectoryMethods),
    ...handlers(wire, Service, stepMethods),
    ...handlers(wire, Service, tagMethods),
    ...handlers(wire, Service, { appendSteps, readSteps }),
  };
}
