import type { ServiceImpl } from '@connectrpc/connect';
import { RolloutService as Service } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { environmentMethods } from '../service/environment/environment.ts';
import { groupMethods } from '../service/group/group.ts';
import { claimMethods } from '../service/rollout/claim.ts';
import { readRollouts } from '../service/rollout/read.ts';
import { rolloutMethods } from '../service/rollout/rollout.ts';
import { validationMethods } from '../service/rollout/validation.ts';
import { taskMethods } from '../service/task/task.ts';
import { validatorMethods } from '../service/task/validator.ts';
import { handlers, type Wire } from './call.ts';

/** Rollouts and their queue, a file a noun. */
export function rolloutService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...handlers(wire, Service, taskMethods),
    ...handlers(wire, Service, validatorMethods),
    ...handlers(wire, Service, groupMethods),
    ...handlers(wire, Service, rolloutMethods),
    ...handlers(wire, Service, validationMethods),
    ...handlers(wire, Service, claimMethods),
    ...handlers(wire, Service, environmentMethods),
    ...handlers(wire, Service, { readRollouts }),
  };
}
