import type { ServiceImpl } from '@connectrpc/connect';
import { TrajectoryService as Service } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { tagMethods } from '../service/trajectory/tag.ts';
import { stepMethods, trajectoryMethods } from '../service/trajectory/trajectory.ts';
import { appendSteps } from './append.ts';
import { unaryMethods, type Wire } from './call.ts';
import { readSteps } from './read.ts';

/** Trajectories and their steps. */
export function trajectoryService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...unaryMethods(wire, Service, trajectoryMethods),
    ...unaryMethods(wire, Service, stepMethods),
    ...unaryMethods(wire, Service, tagMethods),
    appendSteps: appendSteps(wire),
    readSteps: readSteps(wire),
  };
}
