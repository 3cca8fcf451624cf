import {
  ENDED,
  type RetentionPolicy,
  type RetentionScope,
  type StatePolicy,
  type TrajectoryPolicy,
} from '../../src/domain/retention.ts';
import type { NewPolicy } from '../../src/domain/retention_policies.ts';

/** Removes the states `env` of all steps, except of those that are tagged, branch points or terminal. */
export const STATES: StatePolicy = {
  names: ['env'],
  mediaTypes: [],
  keepLast: 0,
  keepEvery: 0n,
  olderThan: 0n,
  keepTagged: true,
  keepBranchPoints: true,
  keepTerminal: true,
};

/** Deletes all ended trajectories without tags. */
export const TRAJECTORIES: TrajectoryPolicy = {
  statuses: ENDED,
  labels: new Map(),
  keepLast: 0,
  olderThan: 0n,
  keepTagged: true,
  onBranches: 'KEEP_SHARED',
};

export const HOUR = 3_600_000;

export function newPolicy(name: string, of: Partial<StatePolicy> & RetentionScope = {}): NewPolicy {
  const { runId, experimentId, ...states } = of;
  const policy: RetentionPolicy = { runId, experimentId, states: { ...STATES, ...states } };
  return { name, policy, intervalMs: HOUR };
}
