import type { ServiceImpl } from '@connectrpc/connect';
import type { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { Wire } from './call.ts';
import { catalogueMethods } from './catalogue.ts';
import { claimMethods } from './claim.ts';
import { environmentVerbs, wholeEnvironments } from './environment.ts';
import { groupMethods } from './group.ts';
import { readRollouts } from './read_rollouts.ts';
import { rolloutVerbs, verdicts, wholeRollouts } from './rollout.ts';

/** Rollouts and their queue, a file a noun. */
export function rolloutService(wire: Wire): ServiceImpl<typeof RolloutService> {
  return {
    ...catalogueMethods(wire),
    ...groupMethods(wire),
    ...wholeRollouts(wire),
    ...claimMethods(wire),
    ...rolloutVerbs(wire),
    ...verdicts(wire),
    ...wholeEnvironments(wire),
    ...environmentVerbs(wire),
    readRollouts: readRollouts(wire),
  };
}
