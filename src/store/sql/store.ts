import { sql } from 'kysely';
import type { Store } from '../contract/store.ts';
import { append, attachState, openForAppend } from './append.ts';
import { deleteExperiment, deleteRun } from './book_deletion.ts';
import { purgeDeleted } from './book_purge.ts';
import { branchRun } from './branch_run.ts';
import { claimRollouts } from './claims.ts';
import { deleteTrajectory } from './deletion.ts';
import type { Engine } from './engine.ts';
import { createEnvironment, findEnvironment, listEnvironments, moveEnvironment } from './environments.ts';
import { findExperiment } from './experiment_rows.ts';
import { createExperiment, listExperiments, updateExperiment } from './experiments.ts';
import { findGroup } from './group_rows.ts';
import { getOrCreateGroup, listGroups, updateGroup } from './groups.ts';
import { failStaleRuns, heartbeatRun } from './heartbeat.ts';
import { KnownHeads } from './known_heads.ts';
import { heartbeatRollouts, sweepLeases } from './leases.ts';
import { getLineage } from './lineage.ts';
import { listSeries, logMetrics, measureSeries, readExtrema, readPoints } from './metrics.ts';
import { expireRequests } from './requests.ts';
import { endRollout } from './rollout_ends.ts';
import { createRollouts } from './rollout_making.ts';
import { releaseRollout, retryRollout, startRollout } from './rollout_moves.ts';
import { getRollout, listRollouts, updateRollout } from './rollouts.ts';
import { readChangedGroups, readChangedRollouts, readRunChanges } from './run_changes.ts';
import { moveRun } from './run_moves.ts';
import { findRun } from './run_rows.ts';
import { listRunTree } from './run_tree.ts';
import { createRun, listRuns, updateRun } from './runs.ts';
import { moveStage } from './stage_moves.ts';
import { findStage } from './stage_rows.ts';
import { getLatestCheckpointedStage, getOrCreateStage, listStages, updateStage } from './stages.ts';
import { collectStates, findStates, readState, Upload } from './states.ts';
import { listStatusChanges } from './status_changes.ts';
import { listSteps } from './step_list.ts';
import { findCheckpoint, listStepStates, readOutlines, readSteps } from './steps.ts';
import { summarize } from './summaries.ts';
import { deleteTag, getTag, listTags, setTag } from './tags.ts';
import { tallyRuns } from './tallies.ts';
import { findTask, listTasks, upsertTasks } from './tasks.ts';
import { branchTrajectory, createTrajectory, listTrajectories, listTree, updateTrajectory } from './trajectories.ts';
import { findById } from './trajectory_rows.ts';
import { listValidationOverrides, overrideValidation, recordValidation } from './validations.ts';
import { findValidator, listValidators, upsertValidators } from './validators.ts';

/** The store over either engine. */
export function sqlStore(engine: Engine): Store {
  const known = new KnownHeads();
  return {
    description: engine.description,
    ping: async () => {
      await sql`select 1`.execute(engine.db);
    },
    close: () => engine.close(),

    createTrajectory: (caller, making, key) => createTrajectory(engine, caller, making, key),
    branchTrajectory: (caller, making, key) => branchTrajectory(engine, caller, making, key),
    getTrajectory: async (namespace, id) => {
      const found = await findById(engine, engine.db, namespace, id);
      return found?.hidden === true ? undefined : found;
    },
    listTrajectories: (namespace, filter, page) => listTrajectories(engine, namespace, filter, page),
    listTree: (namespace, tree, page) => listTree(engine, namespace, tree, page),
    getLineage: (namespace, ref) => getLineage(engine.db, namespace, ref),
    updateTrajectory: (namespace, id, changes) => updateTrajectory(engine, namespace, id, changes),
    deleteTrajectory: (namespace, id, onBranches) => deleteTrajectory(engine, namespace, id, onBranches),
    expireRequests: (days, limit) => expireRequests(engine, days, limit),

    openForAppend: (caller, open) => openForAppend(engine, caller, open),
    append: (batches, wait) => append(engine, known, batches, wait),
    attachState: (caller, attaching) => attachState(engine, caller, attaching),
    onChange: (listener) => engine.onChange(listener),

    readSteps: (namespace, tree, segments, range, view) => readSteps(engine, namespace, tree, segments, range, view),
    readOutlines: (namespace, tree, segments, from, limit) =>
      readOutlines(engine, namespace, tree, segments, from, limit),
    listSteps: (namespace, where, order, page, view) => listSteps(engine, namespace, where, order, page, view),
    findCheckpoint: (namespace, tree, segments, atOrBefore, names) =>
      findCheckpoint(engine, namespace, tree, segments, atOrBefore, names),
    listStepStates: (namespace, tree, segments, name, from, limit) =>
      listStepStates(engine, namespace, tree, segments, name, from, limit),

    putState: (namespace) => new Upload(engine, namespace),
    findStates: (namespace, digests, renew) => findStates(engine, namespace, digests, renew),
    readState: (namespace, digest, offset) => readState(engine, namespace, digest, offset),
    collectStates: (ttlHours, limit) => collectStates(engine, ttlHours, limit),

    createExperiment: (caller, making, key) => createExperiment(engine, caller, making, key),
    getExperiment: (namespace, which) => findExperiment(engine.db, namespace, which),
    listExperiments: (namespace, filter, page, view) => listExperiments(engine, namespace, filter, page, view),
    updateExperiment: (namespace, id, changes) => updateExperiment(engine, namespace, id, changes),

    createRun: (caller, making, key) => createRun(engine, caller, making, key),
    branchRun: (caller, making, key) => branchRun(engine, caller, making, key),
    getRun: (namespace, which) => findRun(engine, engine.db, namespace, which),
    listRuns: (namespace, filter, page, view) => listRuns(engine, namespace, filter, page, view),
    listRunTree: (namespace, runId, page) => listRunTree(engine, namespace, runId, page),
    updateRun: (namespace, id, changes) => updateRun(engine, namespace, id, changes),
    moveRun: (caller, id, verb, said) => moveRun(engine, caller, id, verb, said),
    heartbeatRun: (namespace, id) => heartbeatRun(engine, namespace, id),
    failStaleRuns: (limit) => failStaleRuns(engine, limit),
    readChangedGroups: (namespace, run, where, page) => readChangedGroups(engine, namespace, run, where, page),
    readChangedRollouts: (namespace, run, where, page) => readChangedRollouts(engine, namespace, run, where, page),
    readRunChanges: (namespace, runId, since, allStages) => readRunChanges(engine, namespace, runId, since, allStages),

    deleteExperiment: (namespace, id, onBranches, cancelLive) =>
      deleteExperiment(engine, namespace, id, onBranches, cancelLive),
    deleteRun: (namespace, id, onBranches, cancelLive) => deleteRun(engine, namespace, id, onBranches, cancelLive),
    purgeDeleted: (limit) => purgeDeleted(engine, limit),

    tallyRuns: (namespace, runs) => tallyRuns(engine, engine.db, namespace, runs),

    getOrCreateStage: (caller, making) => getOrCreateStage(engine, caller, making),
    getStage: (namespace, which) => findStage(engine.db, namespace, which),
    listStages: (namespace, runId, filter, page, view) => listStages(engine, namespace, runId, filter, page, view),
    getLatestCheckpointedStage: (namespace, runId, kind) => getLatestCheckpointedStage(engine, namespace, runId, kind),
    updateStage: (namespace, id, changes) => updateStage(engine, namespace, id, changes),
    moveStage: (caller, id, verb, said) => moveStage(engine, caller, id, verb, said),

    logMetrics: (namespace, runId, points) => logMetrics(engine, namespace, runId, points),
    listSeries: (namespace, filter, limit, after) => listSeries(engine, namespace, filter, limit, after),
    measureSeries: (namespace, series, range, upTo) => measureSeries(engine, namespace, series, range, upTo),
    readPoints: (namespace, series, range, limit) => readPoints(engine, namespace, series, range, limit),
    readExtrema: (namespace, series, stretches) => readExtrema(engine, namespace, series, stretches),

    createRollouts: (caller, stageId, rollouts) => createRollouts(engine, caller, stageId, rollouts),
    getRollout: (namespace, id) => getRollout(engine, namespace, id),
    listRollouts: (namespace, filter, page, view) => listRollouts(engine, namespace, filter, page, view),
    claimRollouts: (requests) => claimRollouts(engine, requests),
    heartbeatRollouts: (namespace, leases, leaseMs) => heartbeatRollouts(engine, namespace, leases, leaseMs),
    startRollout: (caller, token, said) => startRollout(engine, caller, token, said),
    updateRollout: (namespace, id, attempt, changes) => updateRollout(engine, namespace, id, attempt, changes),
    endRollout: (caller, end) => endRollout(engine, caller, end),
    releaseRollout: (caller, token, said) => releaseRollout(engine, caller, token, said),
    retryRollout: (caller, token, said) => retryRollout(engine, caller, token, said),
    sweepLeases: (limit) => sweepLeases(engine, limit),

    listStatusChanges: (namespace, owner, page, ascending) =>
      listStatusChanges(engine, namespace, owner, page, ascending),

    upsertTasks: (namespace, tasks) => upsertTasks(engine, namespace, tasks),
    getTask: (namespace, id) => findTask(engine.db, namespace, id),
    listTasks: (namespace, filter, page, view) => listTasks(engine, namespace, filter, page, view),
    upsertValidators: (namespace, validators) => upsertValidators(engine, namespace, validators),
    getValidator: (namespace, id) => findValidator(engine.db, namespace, id),
    listValidators: (namespace, taskId, page) => listValidators(engine, namespace, taskId, page),

    getOrCreateGroup: (namespace, making) => getOrCreateGroup(engine, namespace, making),
    getGroup: (namespace, which) => findGroup(engine, engine.db, namespace, which),
    listGroups: (namespace, stageId, page, view) => listGroups(engine, namespace, stageId, page, view),
    updateGroup: (namespace, id, changes) => updateGroup(engine, namespace, id, changes),

    recordValidation: (namespace, id, attempt, validation) =>
      recordValidation(engine, namespace, id, attempt, validation),
    overrideValidation: (caller, id, override) => overrideValidation(engine, caller, id, override),
    listValidationOverrides: (namespace, id, page) => listValidationOverrides(engine, namespace, id, page),

    summarize: (namespace, filter, by) => summarize(engine, namespace, filter, by),

    createEnvironment: (caller, making, key) => createEnvironment(engine, caller, making, key),
    getEnvironment: (namespace, id) => findEnvironment(engine.db, namespace, { id }),
    listEnvironments: (namespace, of, statuses, page) => listEnvironments(engine, namespace, of, statuses, page),
    moveEnvironment: (caller, id, verb, said, externalId) =>
      moveEnvironment(engine, caller, id, verb, said, externalId),

    setTag: (namespace, id, name, stepNumber, expected) => setTag(engine, namespace, id, name, stepNumber, expected),
    getTag: (namespace, id, name) => getTag(engine, namespace, id, name),
    listTags: (namespace, id, page) => listTags(engine, namespace, id, page),
    deleteTag: (namespace, id, name) => deleteTag(engine, namespace, id, name),
  };
}
