import type { Caller } from '../../../../domain/caller.ts';
import { AnabranchError, noMainTrajectory, runNotFound } from '../../../../domain/errors.ts';
import type { Run } from '../../../../domain/run.ts';
import { BRANCH_CONFIG, effectiveConfig } from '../../../../domain/run_config.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { IdempotencyKey } from '../../../contract/idempotency.ts';
import type { CreatedRun, NewRunBranch } from '../../../contract/run.ts';
import type { Engine } from '../../kit/engine.ts';
import { makeOnce } from '../../kit/requests.ts';
import { keepRun } from '../../kit/run_keys.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { CallerTransaction } from '../../kit/transaction.ts';
import { branchPointOf, makeBranch } from '../../log/trajectory/create.ts';
import { lockExperiment } from '../experiment/experiments.ts';
import {
  CREATED_RUNS,
  defaultName,
  findNamed,
  insertRun,
  mainTrajectoryOf,
  readCreated,
  refuseTakenId,
  runExists,
} from './insert.ts';
import { findRun } from './rows.ts';

export async function branchRun(
  engine: Engine,
  caller: Caller,
  newBranch: NewRunBranch,
  key: IdempotencyKey | undefined,
): Promise<CreatedRun> {
  const made = await makeOnce(engine, caller, key, CREATED_RUNS, async (tx) => {
    const { row, tree, main } = await makeRunBranch(tx, newBranch);
    return { ref: { tree, key: row }, id: newBranch.id, made: await readCreated(tx, row, main) };
  });
  if (made.created) engine.changes.announce([made.run.key]);
  return made;
}

/**
 * Locks are taken in the order experiment, run, trajectory, as deletions do. Writers of the source run and of its
 * trajectory are not blocked.
 */
async function makeRunBranch(
  tx: CallerTransaction,
  newBranch: NewRunBranch,
): Promise<{ row: bigint; tree: bigint; main: TrajectoryRef }> {
  const { engine } = tx;
  const seen = await findRun(tx, { id: newBranch.sourceId }, 'BASIC');
  if (seen === undefined) throw runNotFound(newBranch.sourceId);
  const experiment = await lockExperiment(tx, { id: seen.experiment.id });
  await keepRun(tx, seen.id);
  const [source, main, named, key] = await inOneRoundTrip([
    findRun(tx, seen),
    mainTrajectoryOf(tx, seen),
    newBranch.name === '' ? undefined : findNamed(tx, experiment.key, newBranch.name),
    engine.keys.next(tx.db, 'runs'),
    tx.readMark(),
    refuseTakenId(tx, newBranch.id),
  ]);
  if (source === undefined) throw runNotFound(seen.id);
  if (named !== undefined) throw runExists(newBranch.name, named.id);
  if (main === undefined) throw noMainTrajectory(source.id);
  const configJson = effectiveConfig(source.configJson, newBranch, BRANCH_CONFIG);
  const [point, name] = await inOneRoundTrip([
    branchPointOf(tx, main, newBranch.at),
    newBranch.name === '' ? defaultName(tx, experiment) : newBranch.name,
    tx.readNow(),
  ]);
  const trajectory = await branchMain(tx, newBranch, { source, main, point, name, key });
  await insertRun(tx, newBranch, {
    key,
    experiment,
    name,
    description: newBranch.description === '' ? `Branched from ${source.name} at step ${point}` : newBranch.description,
    configJson,
    plan: newBranch.plan ?? source.plan,
    heartbeatTimeoutMs: newBranch.heartbeatTimeoutMs ?? source.heartbeatTimeoutMs,
    parent: { tree: source.tree.key, key: source.key, branchPoint: point },
    main: trajectory,
  });
  return { row: key, tree: source.tree.key, main: trajectory };
}

interface Branching {
  readonly source: Run;
  readonly main: Trajectory;
  readonly point: bigint;
  readonly name: string;
  readonly key: bigint;
}

/** Creates the branch of the main trajectory, with the name and labels of the new run. */
async function branchMain(
  tx: CallerTransaction,
  { trajectoryId, trajectoryUid, labels }: NewRunBranch,
  { source, main, point, name, key }: Branching,
): Promise<TrajectoryRef> {
  const trajectory = { id: trajectoryId, uid: trajectoryUid, name, labels, metadataJson: '' };
  try {
    return await makeBranch(tx, main, point, trajectory, { run: key, experiment: source.experiment.key });
  } catch (error) {
    // The trajectory was deleted after it was read.
    if (error instanceof AnabranchError && error.reason === 'TRAJECTORY_NOT_FOUND') throw noMainTrajectory(source.id);
    throw error;
  }
}
