import { sql } from 'kysely';
import type { Store } from '../contract/store.ts';
import type { StoreEngine } from './engine.ts';
import { listNamespaces } from './kit/namespaces.ts';
import { expireRequests } from './kit/requests.ts';
import { listStatusChanges } from './kit/status/status_changes.ts';
import { scopeOf } from './kit/transaction.ts';
import { KnownHeads } from './log/append/known_heads.ts';
import { StepSearcher } from './log/search/step_searcher.ts';
import { StateEncoder } from './log/states/encoder.ts';
import { listValidationOverrides, overrideValidation, recordValidation } from './records/attempt/validations.ts';
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
import { type Parts, TRAJECTORY_METHODS } from './trajectory_methods.ts';
import { exportArchive } from './upkeep/archive/export.ts';
import { importArchive } from './upkeep/archive/import.ts';
import { readOnThread } from './upkeep/archive/reading/archive_reader.ts';
import { countRows, findLargestRuns } from './upkeep/database_stats.ts';
import {
  claimDuePolicy,
  deletePolicy,
  endPolicyExecution,
  listPolicies,
  renewPolicyLease,
  setPolicy,
} from './upkeep/retention/policies.ts';
import { beginRetention } from './upkeep/retention/retain.ts';
import { deleteExperiment, deleteRun } from './upkeep/run/deletion.ts';
import { purgeDeleted } from './upkeep/run/purge.ts';
import { verify } from './upkeep/verification/verify.ts';

/** Returns the store over either engine. */
export function sqlStore(engine: StoreEngine, stateCacheBytes?: number): Store {
  const encoder = new StateEncoder(stateCacheBytes);
  return storeOver({ engine, known: new KnownHeads(), encoder, searcher: new StepSearcher() });
}

/** The methods are on a shared prototype, because `within` creates a store for every call. */
function storeOver(parts: Parts): Store {
  return Object.assign(Object.create(METHODS) as Store, parts);
}

const METHODS: Store & ThisType<Store & Parts> = {
  ...TRAJECTORY_METHODS,
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
    const { known, encoder, searcher } = this;
    return storeOver({ engine: this.engine.within(call), known, encoder, searcher });
  },
  async emptyLog() {
    await this.engine.emptyLog?.();
  },
  async ping() {
    await sql`select 1`.execute(this.engine.db);
  },
  async close() {
    await this.searcher.close();
    await this.engine.close();
  },

  verify() {
    return verify(this.engine);
  },
  exportArchive(namespace, scope) {
    return exportArchive(scopeOf(this.engine, namespace), scope);
  },
  readArchive(chunks) {
    return readOnThread(chunks);
  },
  importArchive(namespace, parts) {
    return importArchive(this.engine, this.encoder, namespace, parts);
  },
  listNamespaces() {
    return listNamespaces(this.engine);
  },
  countRows() {
    return countRows(this.engine);
  },
  findLargestRuns(namespace) {
    return findLargestRuns(this.engine, namespace);
  },

  expireRequests(days, limit) {
    return expireRequests(this.engine, days, limit);
  },

  retain(namespace, policy, how) {
    return beginRetention(this.engine, namespace, policy, how);
  },
  setRetentionPolicy(namespace, policy) {
    return setPolicy(this.engine, namespace, policy);
  },
  listRetentionPolicies(namespace, page) {
    return listPolicies(scopeOf(this.engine, namespace), page);
  },
  deleteRetentionPolicy(namespace, name) {
    return deletePolicy(this.engine, namespace, name);
  },
  claimDuePolicy(lease, leaseMs) {
    return claimDuePolicy(this.engine, lease, leaseMs);
  },
  renewPolicyLease(lease, leaseMs) {
    return renewPolicyLease(this.engine, lease, leaseMs);
  },
  endPolicyExecution(policy, end) {
    return endPolicyExecution(this.engine, policy, end);
  },

  createExperiment(caller, newExperiment, key) {
    return createExperiment(this.engine, caller, newExperiment, key);
  },
  getExperiment(namespace, which) {
    return findExperiment(scopeOf(this.engine, namespace), which);
  },
  listExperiments(namespace, filter, page, view) {
    return listExperiments(scopeOf(this.engine, namespace), filter, page, view);
  },
  updateExperiment(namespace, id, changes) {
    return updateExperiment(this.engine, namespace, id, changes);
  },

  createRun(caller, newRun, key) {
    return createRun(this.engine, caller, newRun, key);
  },
  branchRun(caller, newBranch, key) {
    return branchRun(this.engine, caller, newBranch, key);
  },
  getRun(namespace, which) {
    return findRun(scopeOf(this.engine, namespace), which);
  },
  listRuns(namespace, filter, page, view) {
    return listRuns(scopeOf(this.engine, namespace), filter, page, view);
  },
  listRunTrees(namespace, experimentId, page) {
    return listRunTrees(scopeOf(this.engine, namespace), experimentId, page);
  },
  listRunTree(namespace, runId, page) {
    return listRunTree(scopeOf(this.engine, namespace), runId, page);
  },
  updateRun(namespace, id, changes) {
    return updateRun(this.engine, namespace, id, changes);
  },
  cancelNextRollouts(namespace, of) {
    return cancelNextRollouts(this.engine, namespace, of);
  },
  cancelMarkedRollouts() {
    return cancelMarkedRollouts(this.engine);
  },
  moveRun(caller, id, move) {
    return moveRun(this.engine, caller, id, move);
  },
  heartbeatRun(namespace, id) {
    return heartbeatRun(this.engine, namespace, id);
  },
  failStaleRuns(limit) {
    return failStaleRuns(this.engine, limit);
  },
  readChangedGroups(namespace, run, where, page) {
    return readChangedGroups(scopeOf(this.engine, namespace), run, where, page);
  },
  readChangedRollouts(namespace, run, where, page) {
    return readChangedRollouts(scopeOf(this.engine, namespace), run, where, page);
  },
  readLiveRollouts(namespace, run, page) {
    return readLiveRollouts(scopeOf(this.engine, namespace), run, page);
  },
  readRunChanges(namespace, runId, since, allStages) {
    return readRunChanges(scopeOf(this.engine, namespace), runId, since, allStages);
  },

  deleteExperiment(namespace, id, onBranches, cancelLive) {
    return deleteExperiment(this.engine, namespace, id, onBranches, cancelLive);
  },
  deleteRun(namespace, id, onBranches, cancelLive) {
    return deleteRun(this.engine, namespace, id, onBranches, cancelLive);
  },
  purgeDeleted(limit) {
    return purgeDeleted(this.engine, limit);
  },

  tallyRuns(namespace, runs) {
    return tallyRuns(scopeOf(this.engine, namespace), runs);
  },

  getOrCreateStage(caller, newStage) {
    return getOrCreateStage(this.engine, caller, newStage);
  },
  getStage(namespace, which) {
    return findStage(scopeOf(this.engine, namespace), which);
  },
  listStages(namespace, runId, filter, page, view) {
    return listStages(scopeOf(this.engine, namespace), runId, filter, page, view);
  },
  updateStage(namespace, id, changes) {
    return updateStage(this.engine, namespace, id, changes);
  },
  moveStage(caller, id, verb, details, cancelRollouts = false) {
    return moveStage(this.engine, caller, id, { verb, details: details, cancelRollouts });
  },
  closeQueue(namespace, id) {
    return closeQueue(this.engine, namespace, id);
  },

  logMetrics(namespace, runId, points) {
    return logMetrics(this.engine, namespace, runId, points);
  },
  listSeries(namespace, filter, limit, after) {
    return listSeries(scopeOf(this.engine, namespace), filter, limit, after);
  },
  measureSeries(namespace, series, range) {
    return measureSeries(scopeOf(this.engine, namespace), series, range);
  },
  readPoints(namespace, series, range, limit, numbersOnly = false) {
    return readPoints(scopeOf(this.engine, namespace), series, range, limit, numbersOnly);
  },
  downsample(namespace, series, maxPoints) {
    return downsample(scopeOf(this.engine, namespace), series, maxPoints);
  },

  createRollouts(caller, stageId, rollouts, key, claim) {
    return createRollouts(this.engine, caller, { stageId, rollouts, key, claim });
  },
  getRollout(namespace, id) {
    return getRollout(scopeOf(this.engine, namespace), id);
  },
  listRollouts(namespace, filter, page, view) {
    return listRollouts(scopeOf(this.engine, namespace), filter, page, view);
  },
  claimRollouts(requests) {
    return claimRollouts(this.engine, requests);
  },
  heartbeatRollouts(namespace, leases, leaseMs) {
    return heartbeatRollouts(this.engine, namespace, leases, leaseMs);
  },
  startRollout(caller, token, details) {
    return startRollout(this.engine, caller, token, details);
  },
  updateRollout(namespace, id, attempt, changes) {
    return updateRollout(this.engine, namespace, id, attempt, changes);
  },
  endRollout(caller, end) {
    return endRollout(this.engine, caller, end);
  },
  releaseRollout(caller, token, details, report) {
    return releaseRollout(this.engine, caller, token, details, report);
  },
  retryRollout(caller, token, details) {
    return retryRollout(this.engine, caller, token, details);
  },
  sweepLeases(limit) {
    return sweepLeases(this.engine, limit);
  },

  listStatusChanges(namespace, owner, page, ascending) {
    return listStatusChanges(scopeOf(this.engine, namespace), owner, page, ascending);
  },

  upsertTasks(namespace, tasks) {
    return upsertTasks(this.engine, namespace, tasks);
  },
  getTask(namespace, id) {
    return findTask(scopeOf(this.engine, namespace), id);
  },
  listTasks(namespace, filter, page, view) {
    return listTasks(scopeOf(this.engine, namespace), filter, page, view);
  },

  upsertGroup(namespace, group) {
    return upsertGroup(this.engine, namespace, group);
  },
  getGroup(namespace, which) {
    return findGroup(scopeOf(this.engine, namespace), which);
  },
  listGroups(namespace, stageId, page, view) {
    return listGroups(scopeOf(this.engine, namespace), stageId, page, view);
  },

  recordValidation(namespace, id, attempt, validation) {
    return recordValidation(this.engine, namespace, id, attempt, validation);
  },
  overrideValidation(caller, id, attempt, override) {
    return overrideValidation(this.engine, caller, id, attempt, override);
  },
  listValidationOverrides(namespace, id, page) {
    return listValidationOverrides(scopeOf(this.engine, namespace), id, page);
  },

  summarize(namespace, filter, by) {
    return summarize(scopeOf(this.engine, namespace), filter, by);
  },
  summarizeTrajectories(namespace, filter, by) {
    return summarizeTrajectories(scopeOf(this.engine, namespace), filter, by);
  },
  upsertEnvironment(caller, environment) {
    return upsertEnvironment(this.engine, caller, environment);
  },
  listEnvironments(namespace, filter, page) {
    return listEnvironments(scopeOf(this.engine, namespace), filter, page);
  },
};
