import type { Bench } from './bench.ts';
import { appendBatch } from './benches/append_batch.ts';
import { exportBench, importBench } from './benches/archive.ts';
import { authBenches } from './benches/auth.ts';
import { bigState } from './benches/big_state.ts';
import { branch, branchNesting, branchWhileWriting } from './benches/branch.ts';
import { deleteBesideWriter } from './benches/delete_beside_writer.ts';
import { firstStep } from './benches/first_step.ts';
import { follow, followRemote } from './benches/follow.ts';
import { backupBesideWriter, exportBesideWriter, retentionBesideWriter } from './benches/greedy_beside_writer.ts';
import { growth } from './benches/growth.ts';
import { hostileNeighbour } from './benches/hostile_neighbour.ts';
import {
  fanIn,
  ingestBatch,
  ingestSingle,
  ingestSingleTls,
  ingestSingleTraced,
  sharedStates,
} from './benches/ingest.ts';
import { instances, pooled } from './benches/instances.ts';
import { lineage, lineageAppend } from './benches/lineage.ts';
import { listBest } from './benches/list_best.ts';
import { lockstep } from './benches/lockstep.ts';
import { merge, mergeBacklog } from './benches/merge.ts';
import { metricsIngest, metricsRead } from './benches/metrics.ts';
import { pageIngest, pageMemory, pageViews } from './benches/page.ts';
import { peers } from './benches/peers.ts';
import { pythonClient } from './benches/python.ts';
import { read } from './benches/read.ts';
import { readerBesideWriter } from './benches/reader_beside_writer.ts';
import { claims, claimsDepth, progress, readRollouts, rolloutList, watchRun } from './benches/rollouts.ts';
import { runList, runTree } from './benches/runs.ts';
import { savers } from './benches/savers.ts';
import { series } from './benches/series.ts';
import { start } from './benches/start.ts';
import { storage } from './benches/storage.ts';
import { storageSteps } from './benches/storage_steps.ts';
import { besideWaitingClaims, idleFollowers, waitingClaims, watchers } from './benches/waiting.ts';

/** All benches, in the order in which they run. */
export const BENCHES: readonly Bench[] = [
  ingestSingle,
  ingestSingleTls,
  ingestSingleTraced,
  ...authBenches,
  ingestBatch,
  lockstep,
  appendBatch,
  firstStep,
  fanIn,
  sharedStates,
  bigState,
  read,
  readerBesideWriter,
  listBest,
  series,
  deleteBesideWriter,
  backupBesideWriter,
  exportBesideWriter,
  retentionBesideWriter,
  hostileNeighbour,
  exportBench,
  importBench,
  branch,
  branchNesting,
  branchWhileWriting,
  lineage,
  lineageAppend,
  follow,
  followRemote,
  instances,
  pooled,
  idleFollowers,
  waitingClaims,
  besideWaitingClaims,
  watchers,
  metricsIngest,
  metricsRead,
  runList,
  runTree,
  claims,
  claimsDepth,
  rolloutList,
  watchRun,
  progress,
  readRollouts,
  start,
  merge,
  mergeBacklog,
  ...storage,
  ...storageSteps,
  growth,
  peers,
  pageViews,
  pageIngest,
  pageMemory,
  ...pythonClient,
  savers,
];
