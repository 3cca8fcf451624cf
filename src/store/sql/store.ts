import type { Store } from '../contract/store.ts';
import type { StoreEngine } from './engine.ts';
import { expireRequests } from './kit/requests.ts';
import { listStatusChanges } from './kit/status/status_changes.ts';
import { type ReadScope, scopeOf } from './kit/transaction.ts';
import { append } from './log/append/append.ts';
import { appendToNew } from './log/append/append_new.ts';
import { openForAppend } from './log/append/open.ts';
import { listSteps } from './log/list/list.ts';
import { readStepSeries } from './log/list/series.ts';
import { findUnmerged, mergeSteps } from './log/merge/merge.ts';
import { readEncodedRanges } from './log/read/many_ranges.ts';
import { readEncodedSteps, readOutlines, readSteps } from './log/read/steps.ts';
import { searchSteps } from './log/search/search.ts';
import { StepSearcher } from './log/search/step_searcher.ts';
import { attachState } from './log/states/attach.ts';
import { findCheckpoint } from './log/states/checkpoint.ts';
import { StateEncoder } from './log/states/encoder.ts';
import { readState } from './log/states/restore.ts';
import { findStates, Upload } from './log/states/states.ts';
import { listStepStates, readSmallStates } from './log/states/step_states.ts';
import { locateStates, readWholeStates } from './log/states/whole_states.ts';
import { branchTrajectories } from './log/trajectory/branches.ts';
import { readGains } from './log/trajectory/gains.ts';
import { getLineage, getOwners } from './log/trajectory/lineage.ts';
import { findTrajectories, listTrajectories } from './log/trajectory/list.ts';
import { orderTrajectories } from './log/trajectory/order.ts';
import { findById, findRefs } from './log/trajectory/rows.ts';
import { deleteTag, getTag, listTags, readTreeTags, setTag } from './log/trajectory/tags.ts';
import { createTrajectory, listTree, updateTrajectory } from './log/trajectory/trajectories.ts';
import { listValidationOverrides, overrideValidation, recordValidation } from './records/attempt/validations.ts';
import { findChanges } from './records/awaited.ts';
import { claimRollouts } from './records/claim/claims.ts';
import { listEnvironments, upsertEnvironment } from './records/environment/environments.ts';
import {
  createExperiment,
  findExperiment,
  listExperiments,
  updateExperiment,
} from './records/experiment/experiments.ts';
import { listGroups, upsertGroup } from './records/group/groups.ts';
import { findGroup } from './records/group/rows.ts';
import { createKey, findKey, findValidKeys, listKeys, revokeKey } from './records/key/keys.ts';
import { listTokenSecrets } from './records/key/token_keys.ts';
import { downsample } from './records/metric/downsampling.ts';
import { listSeries, logMetrics, measureSeries, readPoints } from './records/metric/metrics.ts';
import { cancelMarkedRollouts, cancelNextRollouts } from './records/rollout/cancellation.ts';
import { createRollouts } from './records/rollout/create.ts';
import { heartbeatRollouts, sweepLeases } from './records/rollout/leases.ts';
import { endRollout, releaseRollout, retryRollout, startRollout } from './records/rollout/moves.ts';
import { getRollout, listRollouts, updateRollout } from './records/rollout/rollouts.ts';
import { branchRun, createRun } from './records/run/create.ts';
import { failStaleRuns, heartbeatRun, moveRun } from './records/run/moves.ts';
import { findRun } from './records/run/rows.ts';
import { readChangedGroups, readChangedRollouts, readLiveRollouts, readRunChanges } from './records/run/run_changes.ts';
import { listRuns, listRunTree, listRunTrees, updateRun } from './records/run/runs.ts';
import { tallyRuns } from './records/run/tallies.ts';
import { findStage } from './records/stage/rows.ts';
import { closeQueue, getOrCreateStage, listStages, moveStage, updateStage } from './records/stage/stages.ts';
import { summarize } from './records/summary/summaries.ts';
import { summarizeTrajectories } from './records/summary/trajectories.ts';
import { findTask, listTasks, upsertTasks } from './records/task/tasks.ts';
import { exportArchive } from './upkeep/archive/export.ts';
import { importArchive } from './upkeep/archive/import.ts';
import { readOnThread } from './upkeep/archive/reading/archive_reader.ts';
import { countRows, findLargestRuns, listNamespaces } from './upkeep/database_stats.ts';
import { holdJobs, releaseJobs } from './upkeep/job_lease.ts';
import { deleteNamespace } from './upkeep/namespace.ts';
import { requireSchema } from './upkeep/required_schema.ts';
import {
  claimDuePolicy,
  deletePolicy,
  endPolicyExecution,
  listPolicies,
  renewPolicyLease,
  setPolicy,
} from './upkeep/retention/policies.ts';
import { pruneStates } from './upkeep/retention/prune.ts';
import { beginRetention } from './upkeep/retention/retain.ts';
import { deleteExperiment, deleteRun } from './upkeep/run/deletion.ts';
import { purgeDeleted } from './upkeep/run/purge.ts';
import { collectStates } from './upkeep/state/collection.ts';
import { deleteTrajectory } from './upkeep/trajectory/deletion.ts';
import { measureUsage } from './upkeep/usage/measure.ts';
import { verify } from './upkeep/verification/verify.ts';
import { countWork } from './upkeep/work_counts.ts';

/** Returns the store over either engine. */
export function sqlStore(engine: StoreEngine, stateCacheBytes?: number): Store {
  const encoder = new StateEncoder(stateCacheBytes);
  engine.changes.onReplaced(() => encoder.forgetAll());
  return storeOver({ engine, encoder, searcher: new StepSearcher() });
}

/** What a store is made of. */
interface Parts {
  readonly engine: StoreEngine;
  readonly encoder: StateEncoder;
  readonly searcher: StepSearcher;
}

/** The methods are on a shared prototype, because `within` creates a store for every call. */
function storeOver(parts: Parts): Store {
  return Object.assign(Object.create(METHODS) as Store, parts);
}

/** Returns the method for a function that takes the engine first. */
function onEngine<Args extends unknown[], Result>(run: (engine: StoreEngine, ...args: Args) => Result) {
  return function (this: Parts, ...args: Args): Result {
    return run(this.engine, ...args);
  };
}

/** Returns the method for a function that reads one namespace. */
function inNamespace<Args extends unknown[], Result>(run: (scope: ReadScope<StoreEngine>, ...args: Args) => Result) {
  return function (this: Parts, namespace: string, ...args: Args): Result {
    return run(scopeOf(this.engine, namespace), ...args);
  };
}

/** Binds the functions of the rooms to the contract. */
const METHODS: Store & ThisType<Store & Parts> = {
  get description() {
    return this.engine.description;
  },
  get lost() {
    return this.engine.lost;
  },
  get slots() {
    return this.engine.slots;
  },
  within(call) {
    const { encoder, searcher } = this;
    return storeOver({ engine: this.engine.within(call), encoder, searcher });
  },
  async emptyWal() {
    await this.engine.emptyWal?.();
  },
  async cutFreePages(pages) {
    await this.engine.cutFreePages?.(pages);
  },
  load() {
    return this.engine.load();
  },
  countWork: onEngine(countWork),
  ping: onEngine(requireSchema),
  async close() {
    await this.searcher.close();
    await this.engine.close();
  },

  createTrajectory: onEngine(createTrajectory),
  branchTrajectory: onEngine(createTrajectory),
  branchTrajectories: onEngine(branchTrajectories),
  async getTrajectory(namespace, id) {
    const found = await findById(scopeOf(this.engine, namespace), id);
    return found?.hidden === true ? undefined : found;
  },
  findTrajectoryRefs: inNamespace(findRefs),
  knownTrajectoryRef(namespace, id) {
    return this.engine.known.find(namespace, id);
  },
  listTrajectories: inNamespace(listTrajectories),
  orderTrajectories: inNamespace(orderTrajectories),
  findTrajectories: inNamespace(findTrajectories),
  listTree: inNamespace(listTree),
  readGains: inNamespace(readGains),
  getLineage: inNamespace(getLineage),
  getOwners: inNamespace(getOwners),
  updateTrajectory: onEngine(updateTrajectory),
  deleteTrajectory: onEngine(deleteTrajectory),
  openForAppend: onEngine(openForAppend),
  append(batches, wait) {
    return append(this.engine, this.encoder, batches, wait);
  },
  appendToNew: onEngine(appendToNew),
  attachState(caller, attaching) {
    return attachState(this.engine, this.encoder, caller, attaching);
  },
  mergeSteps(requests) {
    return mergeSteps(this.engine, this.engine.known.recent, requests);
  },
  findUnmerged: onEngine(findUnmerged),
  onChange(listener) {
    return this.engine.changes.onChange(listener);
  },
  onReplaced(listener) {
    return this.engine.changes.onReplaced(listener);
  },
  get hearsOthers() {
    return this.engine.changes.hearsOthers;
  },
  findChanges: onEngine(findChanges),

  readSteps: inNamespace(readSteps),
  readEncodedSteps: inNamespace(readEncodedSteps),
  readEncodedRanges: inNamespace(readEncodedRanges),
  readOutlines: inNamespace(readOutlines),
  readStepSeries: inNamespace(readStepSeries),
  searchSteps(namespace, ranges, query) {
    return searchSteps(scopeOf(this.engine, namespace), this.searcher, ranges, query);
  },
  listSteps: inNamespace(listSteps),
  findCheckpoint: inNamespace(findCheckpoint),
  listStepStates: inNamespace(listStepStates),
  readSmallStates: inNamespace(readSmallStates),

  putState(namespace, base) {
    return new Upload(this.engine, namespace, base);
  },
  findStates: onEngine(findStates),
  readState: inNamespace(readState),
  heldState(namespace, digest) {
    return this.encoder.held(namespace, digest);
  },
  locateStates: inNamespace(locateStates),
  readWholeStates: inNamespace(readWholeStates),
  async pruneStates(namespace, ref, steps) {
    await pruneStates(this.engine, namespace, ref, { steps, rules: { keepTagged: false, keepBranchPoints: false } });
  },
  collectStates: onEngine(collectStates),

  measureUsage: inNamespace(measureUsage),

  setTag(namespace, id, name, stepNumber, expected) {
    return setTag(this.engine, namespace, id, { name, stepNumber, expected });
  },
  getTag: inNamespace(getTag),
  listTags: inNamespace(listTags),
  readTreeTags: inNamespace(readTreeTags),
  deleteTag: onEngine(deleteTag),

  verify: onEngine(verify),
  exportArchive: inNamespace(exportArchive),
  readArchive: readOnThread,
  importArchive(namespace, parts) {
    return importArchive(this.engine, this.encoder, namespace, parts);
  },
  listNamespaces: onEngine(listNamespaces),
  deleteNamespace: onEngine(deleteNamespace),
  countRows: onEngine(countRows),
  findLargestRuns: onEngine(findLargestRuns),
  expireRequests: onEngine(expireRequests),

  retain: onEngine(beginRetention),
  setRetentionPolicy: onEngine(setPolicy),
  listRetentionPolicies: inNamespace(listPolicies),
  deleteRetentionPolicy: onEngine(deletePolicy),
  claimDuePolicy: onEngine(claimDuePolicy),
  renewPolicyLease: onEngine(renewPolicyLease),
  endPolicyExecution: onEngine(endPolicyExecution),
  createKey: onEngine(createKey),
  listKeys: onEngine(listKeys),
  revokeKey: onEngine(revokeKey),
  findKey: onEngine(findKey),
  findValidKeys: onEngine(findValidKeys),
  holdJobs: onEngine(holdJobs),
  releaseJobs: onEngine(releaseJobs),
  listTokenSecrets: onEngine(listTokenSecrets),

  createExperiment: onEngine(createExperiment),
  getExperiment: inNamespace(findExperiment),
  listExperiments: inNamespace(listExperiments),
  updateExperiment: onEngine(updateExperiment),

  createRun: onEngine(createRun),
  branchRun: onEngine(branchRun),
  getRun: inNamespace(findRun),
  listRuns: inNamespace(listRuns),
  listRunTrees: inNamespace(listRunTrees),
  listRunTree: inNamespace(listRunTree),
  updateRun: onEngine(updateRun),
  cancelNextRollouts: onEngine(cancelNextRollouts),
  cancelMarkedRollouts: onEngine(cancelMarkedRollouts),
  moveRun: onEngine(moveRun),
  heartbeatRun: onEngine(heartbeatRun),
  failStaleRuns: onEngine(failStaleRuns),
  readChangedGroups: inNamespace(readChangedGroups),
  readChangedRollouts: inNamespace(readChangedRollouts),
  readLiveRollouts: inNamespace(readLiveRollouts),
  readRunChanges: inNamespace(readRunChanges),

  deleteExperiment: onEngine(deleteExperiment),
  deleteRun: onEngine(deleteRun),
  purgeDeleted: onEngine(purgeDeleted),

  tallyRuns: inNamespace(tallyRuns),

  getOrCreateStage: onEngine(getOrCreateStage),
  getStage: inNamespace(findStage),
  listStages: inNamespace(listStages),
  updateStage: onEngine(updateStage),
  moveStage(caller, id, verb, details, cancelRollouts = false) {
    return moveStage(this.engine, caller, id, { verb, details, cancelRollouts });
  },
  closeQueue: onEngine(closeQueue),

  logMetrics: onEngine(logMetrics),
  listSeries: inNamespace(listSeries),
  measureSeries: inNamespace(measureSeries),
  readPoints: inNamespace(readPoints),
  downsample: inNamespace(downsample),

  createRollouts(caller, stageId, rollouts, key, claim) {
    return createRollouts(this.engine, caller, { stageId, rollouts, key, claim });
  },
  getRollout: inNamespace(getRollout),
  listRollouts: inNamespace(listRollouts),
  claimRollouts: onEngine(claimRollouts),
  heartbeatRollouts: onEngine(heartbeatRollouts),
  startRollout: onEngine(startRollout),
  updateRollout: onEngine(updateRollout),
  endRollout: onEngine(endRollout),
  releaseRollout: onEngine(releaseRollout),
  retryRollout: onEngine(retryRollout),
  sweepLeases: onEngine(sweepLeases),

  listStatusChanges: inNamespace(listStatusChanges),

  upsertTasks: onEngine(upsertTasks),
  getTask: inNamespace(findTask),
  listTasks: inNamespace(listTasks),

  upsertGroup: onEngine(upsertGroup),
  getGroup: inNamespace(findGroup),
  listGroups: inNamespace(listGroups),

  recordValidation: onEngine(recordValidation),
  overrideValidation: onEngine(overrideValidation),
  listValidationOverrides: inNamespace(listValidationOverrides),

  summarize: inNamespace(summarize),
  summarizeTrajectories: inNamespace(summarizeTrajectories),
  upsertEnvironment: onEngine(upsertEnvironment),
  listEnvironments: inNamespace(listEnvironments),
};
