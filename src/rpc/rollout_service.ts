import type { ServiceImpl } from '@connectrpc/connect';
import { RolloutService as Service } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { environmentMethods } from '../service/environment/environment.ts';
import { groupMethods } from '../service/group/group.ts';
import { claimMethods } from '../service/rollout/claim.ts';
import { rolloutMethods } from '../service/rollout/rollout.ts';
import { validationMethods } from '../service/rollout/validation.ts';
import { taskMethods } from '../service/task/task.ts';
import { validatorMethods } from '../service/task/validator.ts';
import { unaryMethods, type Wire } from './call.ts';
import { readRollouts } from './read_rollouts.ts';

/** Rollouts and their queue, a file a noun. */
export function rolloutService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...unaryMethods(wire, Service, taskMethods),
    ...unaryMethods(wire, Service, validatorMethods),
    ...unaryMethods(wire, Service, groupMethods),
    ...unaryMethods(wire, Service, rolloutMethods),
    ...unaryMethods(wire, Service, validationMethods),
    ...unaryMethods(wire, Service, claimMethods),
    ...unaryMethods(wire, Service, environmentMethods),
    readRollouts: readRollouts(wire),
  };
}
