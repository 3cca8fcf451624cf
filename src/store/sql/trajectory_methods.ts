import type { AppendStore } from '../contract/append.ts';
import type { MergeStore } from '../contract/merge.ts';
import type { StateStore } from '../contract/state.ts';
import type { StepStore } from '../contract/step.ts';
import type { Store } from '../contract/store.ts';
import type { TagStore } from '../contract/tag.ts';
import type { TrajectoryStore } from '../contract/trajectory.ts';
import type { UsageStore } from '../contract/usage.ts';
import type { StoreEngine } from './engine.ts';
import { scopeOf } from './kit/transaction.ts';
import { append } from './log/append/append.ts';
import { appendToNew } from './log/append/append_new.ts';
import type { KnownHeads } from './log/append/known_heads.ts';
import { openForAppend } from './log/append/open.ts';
import { listSteps } from './log/list/list.ts';
import { readStepSeries } from './log/list/series.ts';
import { findUnmerged, mergeSteps } from './log/merge/merge.ts';
import { readEncodedRanges } from './log/read/many_ranges.ts';
import { readEncodedSteps, readOutlines, readSteps } from './log/read/steps.ts';
import { searchSteps } from './log/search/search.ts';
import type { StepSearcher } from './log/search/step_searcher.ts';
import { attachState } from './log/states/attach.ts';
import { findCheckpoint } from './log/states/checkpoint.ts';
import type { StateEncoder } from './log/states/encoder.ts';
import { readState } from './log/states/restore.ts';
import { findStates, Upload } from './log/states/states.ts';
import { listStepStates, readSmallStates } from './log/states/step_states.ts';
import { locateStates, readWholeStates } from './log/states/whole_states.ts';
import { readGains } from './log/trajectory/gains.ts';
import { getLineage, getOwners } from './log/trajectory/lineage.ts';
import { findTrajectories, listTrajectories } from './log/trajectory/list.ts';
import { orderTrajectories } from './log/trajectory/order.ts';
import { findById, findRefs } from './log/trajectory/rows.ts';
import { deleteTag, getTag, listTags, readTreeTags, setTag } from './log/trajectory/tags.ts';
import { createTrajectory, listTree, updateTrajectory } from './log/trajectory/trajectories.ts';
import { pruneStates } from './upkeep/retention/prune.ts';
import { collectStates } from './upkeep/state/collection.ts';
import { deleteTrajectory } from './upkeep/trajectory/deletion.ts';
import { measureUsage } from './upkeep/usage/measure.ts';

/** What a store is made of. */
export interface Parts {
  readonly engine: StoreEngine;
  readonly known: KnownHeads;
  readonly encoder: StateEncoder;
  readonly searcher: StepSearcher;
}

type Methods = Omit<TrajectoryStore, 'expireRequests'> &
  AppendStore &
  MergeStore &
  StepStore &
  StateStore &
  TagStore &
  UsageStore;

/** Methods of trajectories, their steps and their states. */
export const TRAJECTORY_METHODS: Methods & ThisType<Store & Parts> = {
  createTrajectory(caller, newTrajectory, key) {
    return createTrajectory(this.engine, caller, newTrajectory, key);
  },
  branchTrajectory(caller, newBranch, key) {
    return createTrajectory(this.engine, caller, newBranch, key);
  },
  async getTrajectory(namespace, id) {
    const found = await findById(scopeOf(this.engine, namespace), id);
    return found?.hidden === true ? undefined : found;
  },
  findTrajectoryRefs(namespace, ids) {
    return findRefs(scopeOf(this.engine, namespace), ids);
  },
  listTrajectories(namespace, filter, page) {
    return listTrajectories(scopeOf(this.engine, namespace), filter, page);
  },
  orderTrajectories(namespace, filter, order, page) {
    return orderTrajectories(scopeOf(this.engine, namespace), filter, order, page);
  },
  findTrajectories(namespace, which) {
    return findTrajectories(scopeOf(this.engine, namespace), which);
  },
  listTree(namespace, tree, page, keys) {
    return listTree(scopeOf(this.engine, namespace), tree, page, keys);
  },
  readGains(namespace, tree, branches) {
    return readGains(scopeOf(this.engine, namespace), tree, branches);
  },
  getLineage(namespace, ref, from) {
    return getLineage(scopeOf(this.engine, namespace), ref, from);
  },
  getOwners(namespace, tree, keys) {
    return getOwners(scopeOf(this.engine, namespace), tree, keys);
  },
  updateTrajectory(namespace, id, changes) {
    return updateTrajectory(this.engine, namespace, id, changes);
  },
  deleteTrajectory(namespace, id, onBranches) {
    return deleteTrajectory(this.engine, namespace, id, onBranches);
  },
  openForAppend(caller, open, create) {
    return openForAppend(this.engine, this.known, caller, open, create);
  },
  append(batches, wait) {
    return append(this.engine, this, batches, wait);
  },
  appendToNew(batches) {
    return appendToNew(this.engine, this.known, batches);
  },
  attachState(caller, attaching) {
    return attachState(this.engine, this.encoder, caller, attaching);
  },
  mergeSteps(requests) {
    return mergeSteps(this.engine, requests);
  },
  findUnmerged(after, limit, idleSeconds) {
    return findUnmerged(this.engine, after, limit, idleSeconds);
  },
  onChange(listener) {
    return this.engine.changes.onChange(listener);
  },

  readSteps(namespace, tree, lineage, range, view) {
    return readSteps(scopeOf(this.engine, namespace), tree, lineage, range, view);
  },
  readEncodedSteps(namespace, tree, lineage, range, view) {
    return readEncodedSteps(scopeOf(this.engine, namespace), tree, lineage, range, view);
  },
  readEncodedRanges(namespace, ranges, view, inlineBytes) {
    return readEncodedRanges(scopeOf(this.engine, namespace), ranges, view, inlineBytes);
  },
  readOutlines(namespace, tree, lineage, from, limit) {
    return readOutlines(scopeOf(this.engine, namespace), tree, lineage, from, limit);
  },
  readStepSeries(namespace, of, query) {
    return readStepSeries(scopeOf(this.engine, namespace), of, query);
  },
  searchSteps(namespace, ranges, query) {
    return searchSteps(scopeOf(this.engine, namespace), this.searcher, ranges, query);
  },
  listSteps(namespace, where, order, page, view) {
    return listSteps(scopeOf(this.engine, namespace), where, order, page, view);
  },
  findCheckpoint(namespace, tree, lineage, atOrBefore, names) {
    return findCheckpoint(scopeOf(this.engine, namespace), tree, lineage, atOrBefore, names);
  },
  listStepStates(namespace, tree, lineage, states) {
    return listStepStates(scopeOf(this.engine, namespace), tree, lineage, states);
  },
  readSmallStates(namespace, place, names) {
    return readSmallStates(scopeOf(this.engine, namespace), place, names);
  },

  putState(namespace, base) {
    return new Upload(this.engine, namespace, base);
  },
  findStates(namespace, digests, renew) {
    return findStates(this.engine, namespace, digests, renew);
  },
  readState(namespace, digest, offset, last) {
    return readState(scopeOf(this.engine, namespace), digest, offset, last);
  },
  locateStates(namespace, digests) {
    return locateStates(scopeOf(this.engine, namespace), digests);
  },
  readWholeStates(namespace, digests) {
    return readWholeStates(scopeOf(this.engine, namespace), digests);
  },
  async pruneStates(namespace, ref, steps) {
    await pruneStates(this.engine, namespace, ref, { steps, rules: { keepTagged: false, keepBranchPoints: false } });
  },
  collectStates(ttlHours, limit) {
    return collectStates(this.engine, ttlHours, limit);
  },

  measureUsage(namespace, of) {
    return measureUsage(scopeOf(this.engine, namespace), of);
  },

  setTag(namespace, id, name, stepNumber, expected) {
    return setTag(this.engine, namespace, id, { name, stepNumber, expected });
  },
  getTag(namespace, id, name) {
    return getTag(scopeOf(this.engine, namespace), id, name);
  },
  listTags(namespace, id, page, name) {
    return listTags(scopeOf(this.engine, namespace), id, page, name);
  },
  readTreeTags(namespace, tree, keys) {
    return readTreeTags(scopeOf(this.engine, namespace), tree, keys);
  },
  deleteTag(namespace, id, name) {
    return deleteTag(this.engine, namespace, id, name);
  },
};
