import type { ServiceImpl } from '@connectrpc/connect';
import { RolloutService as Service } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { environmentMethods } from '../service/environment/environment.ts';
import { groupMethods } from '../service/group/group.ts';
import { taskMethods } from '../service/task/task.ts';
import { validatorMethods } from '../service/task/validator.ts';
import { unaryMethods, type Wire } from './call.ts';
import { claimMethods } from './claim.ts';
import { readRollouts } from './read_rollouts.ts';
import { rolloutVerbs, verdicts, wholeRollouts } from './rollout.ts';

/** Rollouts and their queue, a file a noun. */
export function rolloutService(wire: Wire): ServiceImpl<typeof Service> {
  return {
    ...unaryMethods(wire, Service, taskMethods),
    ...unaryMethods(wire, Service, validatorMethods),
    ...unaryMethods(wire, Service, groupMethods),
    ...wholeRollouts(wire),
    ...claimMethods(wire),
    ...rolloutVerbs(wire),
    ...verdicts(wire),
    ...unaryMethods(wire, Service, environmentMethods),
    readRollouts: readRollouts(wire),
  };
}
