import type { DescService } from '@bufbuild/protobuf';
import type { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import type { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import type { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import type { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { adminMethods, type DatabaseParts } from './admin/admin.ts';
import { environmentMethods } from './environment/environment.ts';
import { experimentMethods } from './experiment/experiment.ts';
import { groupMethods } from './group/group.ts';
import type { Methods } from './method.ts';
import { retentionMethods, storedPolicyMethods } from './retention/retention.ts';
import { claimMethods } from './rollout/claim.ts';
import { readRollouts, rolloutMethods } from './rollout/rollout.ts';
import { validationMethods } from './rollout/validation.ts';
import { metricMethods } from './run/metric.ts';
import { runMethods } from './run/run.ts';
import { summaryMethods } from './run/summary.ts';
import { runVerbs } from './run/verbs.ts';
import { type ServerInfo, serverMethods } from './server/server.ts';
import { stageMethods } from './stage/stage.ts';
import { stateMethods } from './state/state.ts';
import { taskMethods } from './task/task.ts';
import { appendSteps } from './trajectory/append.ts';
import { branchTrajectories } from './trajectory/branches.ts';
import { compareBranches } from './trajectory/comparison.ts';
import { readSteps, readTrajectories } from './trajectory/read.ts';
import { searchSteps } from './trajectory/search.ts';
import { readStepSeries } from './trajectory/series.ts';
import { stepMethods } from './trajectory/step.ts';
import { tagMethods, trajectoryMethods } from './trajectory/trajectory.ts';

/** All methods of a service. A missing method does not compile. */
type AllMethods<S extends DescService> = Methods<S, keyof S['method']>;

export const trajectoryService: AllMethods<typeof TrajectoryService> = {
  ...trajectoryMethods,
  ...stepMethods,
  ...tagMethods,
  appendSteps,
  readSteps,
  readTrajectories,
  readStepSeries,
  searchSteps,
  compareBranches,
  branchTrajectories,
};

export const stateService: AllMethods<typeof StateService> = stateMethods;

export const retentionService: AllMethods<typeof RetentionService> = { ...retentionMethods, ...storedPolicyMethods };

export const runService: AllMethods<typeof RunService> = {
  ...experimentMethods,
  ...runMethods,
  ...runVerbs,
  ...stageMethods,
  ...metricMethods,
  ...summaryMethods,
};

export const rolloutService: AllMethods<typeof RolloutService> = {
  ...taskMethods,
  ...groupMethods,
  ...rolloutMethods,
  ...validationMethods,
  ...claimMethods,
  ...environmentMethods,
  readRollouts,
};

export function adminService(database: DatabaseParts): AllMethods<typeof AdminService> {
  return adminMethods(database);
}

export function serverService(info: ServerInfo): AllMethods<typeof ServerService> {
  return serverMethods(info);
}
