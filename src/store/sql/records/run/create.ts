import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint } from '../../../../domain/change.ts';
import { AnabranchError, noMainTrajectory, runNotFound } from '../../../../domain/errors.ts';
import { progressOf, type RunTally } from '../../../../domain/progress.ts';
import { DEFAULT_HEARTBEAT_TIMEOUT_MS, type Plan, type Run } from '../../../../domain/run.ts';
import {
  BRANCH_CONFIG,
  configMismatch,
  effectiveConfig,
  ROOT_CONFIG,
  statedDifferences,
} from '../../../../domain/run_config.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { IdempotencyKey } from '../../../contract/request.ts';
import type { CreatedRun, NewRun, NewRunBranch, NewRunFields } from '../../../contract/run.ts';
import { byId, keepRun } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { makeOnce, type Noun } from '../../kit/requests.ts';
import { recordStatus } from '../../kit/status/status_changes.ts';
import {
  type CallerTransaction,
  inOneRoundTrip,
  type NamespaceTransaction,
  type ReadScope,
  type Transaction,
} from '../../kit/transaction.ts';
import { bindLabels, flag } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { type EncodedState, encodeStates } from '../../log/states/bytes.ts';
import { branchPointOf, makeBranch, makeRoot } from '../../log/trajectory/create.ts';
import { findById, findByKey } from '../../log/trajectory/rows.ts';
import { type LockedExperiment, lockDefaultExperiment, lockExperiment } from '../experiment/experiments.ts';
import { heartbeatAt } from './moves.ts';
import { bindPlan, findRun } from './rows.ts';

export async function createRun(
  engine: StatesEngine,
  caller: Caller,
  newRun: NewRun,
  key: IdempotencyKey | undefined,
): Promise<CreatedRun> {
  const inline = await encodeStates(newRun.mainTrajectory?.states ?? []);
  const made = await makeOnce(engine, caller, key, CREATED_RUNS, async (tx) => {
    const experiment =
      newRun.experiment === undefined
        ? await lockDefaultExperiment(tx, newRun.defaultExperimentId)
        : await lockExperiment(tx, newRun.experiment);
    // The experiment's lock prevents other runs from taking the name or the number.
    const there = newRun.name === '' ? undefined : await findNamed(tx, experiment.key, newRun.name);
    if (there !== undefined) {
      if (!newRun.returnExisting) throw runExists(newRun.name, there.id);
      return { ref: there, id: there.id, made: await existing(tx, there, newRun) };
    }
    return makeRun(tx, newRun, experiment, inline);
  });
  if (made.created) engine.changes.announce([runHint(made.run.key)]);
  return made;
}

async function makeRun(
  tx: CallerTransaction<StatesEngine>,
  newRun: NewRun,
  experiment: LockedExperiment,
  inline: readonly EncodedState[],
): Promise<MadeRun> {
  const { engine } = tx;
  const configJson = effectiveConfig(experiment.default_config_json, newRun, ROOT_CONFIG);
  const [name, key] = await inOneRoundTrip([
    newRun.name === '' ? defaultName(tx, experiment) : newRun.name,
    engine.keys.next(tx.db, 'runs'),
    tx.readNow(),
    tx.readMark(),
    refuseTakenId(tx, newRun.id),
  ]);
  const { mainTrajectory, labels } = newRun;
  const trajectory = mainTrajectory && { ...mainTrajectory, name, labels, metadataJson: '' };
  const main = trajectory && (await makeRoot(tx, trajectory, inline, { run: key, experiment: experiment.key }));
  return insertRun(tx, newRun, {
    key,
    experiment,
    name,
    description: newRun.description,
    configJson,
    plan: newRun.plan,
    heartbeatTimeoutMs: newRun.heartbeatTimeoutMs ?? DEFAULT_HEARTBEAT_TIMEOUT_MS,
    parent: undefined,
    main,
  });
}

/**
 * M4: returns the run that has the name. Errors: CONFIG_MISMATCH, if it was created with another config or plan than
 * the request states.
 */
async function existing(
  tx: CallerTransaction,
  ref: { readonly tree: bigint; readonly key: bigint },
  newRun: NewRun,
): Promise<CreatedRun> {
  const there = await CREATED_RUNS.find(tx, ref);
  if (there === undefined) throw new Error('a run found in this transaction is missing');
  const { run } = there;
  const { configOverridesJson, removedConfigPaths, plan } = run;
  const differences = statedDifferences({ configJson: configOverridesJson, removedConfigPaths, plan }, newRun);
  if (differences.length > 0) throw configMismatch(run, differences);
  return there;
}

/** Fields of a new run that do not come from the request. */
interface Placement {
  readonly key: bigint;
  readonly experiment: LockedExperiment;
  readonly name: string;
  readonly description: string;
  readonly configJson: string;
  readonly plan: Plan | undefined;
  readonly heartbeatTimeoutMs: number;
  /** Undefined for the root of a tree. */
  readonly parent: { readonly tree: bigint; readonly key: bigint; readonly branchPoint: bigint } | undefined;
  readonly main: TrajectoryRef | undefined;
}

/** A run that a transaction has created, for `makeOnce`. */
interface MadeRun {
  readonly ref: TrajectoryRef;
  readonly id: string;
  readonly made: CreatedRun;
}

/**
 * Inserts a run with the next number of its locked experiment, and its first StatusChange. The transaction has read
 * time and mark.
 */
async function insertRun(tx: CallerTransaction, newRun: NewRunFields, placed: Placement): Promise<MadeRun> {
  const { now } = tx;
  const { key, experiment, parent, main, plan } = placed;
  const tree = parent?.tree ?? key;
  const number = experiment.last_run_number + 1n;
  const counted = tx.db.updateTable('experiments').set({ last_run_number: number }).where('key', '=', experiment.key);
  const inserted = tx.db.insertInto('runs').values({
    key,
    namespace: tx.namespace,
    id: newRun.id,
    experiment: experiment.key,
    tree,
    number,
    name: placed.name,
    description: placed.description,
    config_json: placed.configJson,
    config_overrides_json: newRun.configJson,
    removed_config_paths: JSON.stringify(newRun.removedConfigPaths),
    labels: bindLabels(newRun.labels),
    metadata_json: newRun.metadataJson,
    plan: bindPlan(plan),
    parent: parent?.key ?? null,
    branch_point: parent?.branchPoint ?? null,
    main_tree: main?.tree ?? null,
    main_trajectory: main?.key ?? null,
    status: newRun.status,
    status_message: '',
    phase: '',
    metrics: '{}',
    result_json: '',
    heartbeat_timeout_ms: placed.heartbeatTimeoutMs,
    fail_when_stale: flag(newRun.failWhenStale),
    ...(newRun.failWhenStale
      ? heartbeatAt(now, placed.heartbeatTimeoutMs)
      : { heartbeat_time: null, stale_time: null }),
    start_time: newRun.status === 'RUNNING' ? now : null,
    end_time: null,
    create_time: now,
    update_time: now,
    status_changes: 1n,
    revision: 1n,
    mark: tx.mark,
    hidden: 0,
  });
  const progressPercent = progressOf(newRun.status, plan, NOTHING_YET).percent;
  const firstChange = { ordinal: 0n, from: null, to: newRun.status, message: '', progressPercent };
  await inOneRoundTrip([
    counted.execute(),
    inserted.execute(),
    recordStatus(tx, { tree: key, noun: 'RUN', key }, firstChange),
  ]);
  const [run, mainTrajectory] = await inOneRoundTrip([
    findRun(tx, { key }),
    main && findByKey(tx, main.tree, main.key),
  ]);
  if (run === undefined) throw new Error('the run created in this transaction is missing');
  return { ref: { tree, key }, id: newRun.id, made: { run, created: true, mainTrajectory } };
}

const NOTHING_YET: RunTally = Object.freeze({
  kinds: [],
  openStages: [],
  turns: { count: 0n, seconds: 0 },
  substeps: { count: 0n, seconds: 0 },
});

/** Returns `run-NUMBER` for a run without a name, with a count appended if that name is taken. */
async function defaultName(tx: Transaction, experiment: LockedExperiment): Promise<string> {
  const plain = `run-${experiment.last_run_number + 1n}`;
  for (let count = 1, name = plain; ; count += 1, name = `${plain}-${count}`) {
    if ((await findNamed(tx, experiment.key, name)) === undefined) return name;
  }
}

/** Returns key, tree and id of the run with a name in an experiment; undefined if there is none. */
export async function findNamed(tx: Transaction, experiment: bigint, name: string) {
  return tx.db
    .selectFrom('runs')
    .select(['key', 'tree', 'id'])
    .where('experiment', '=', experiment)
    .where('name', '=', name)
    .where(sql<boolean>`not hidden`)
    .executeTakeFirst();
}

/** Rejects ids of deleted runs too, because they keep their ids until they are purged. */
async function refuseTakenId(tx: NamespaceTransaction, id: string): Promise<void> {
  const taken = await byId(tx, 'runs', id).select('key').executeTakeFirst();
  if (taken !== undefined) throw runExists(id, id);
}

export function runExists(named: string, id: string): AnabranchError {
  return new AnabranchError(
    'RUN_EXISTS',
    named === id
      ? `Run id ${id} is in use, possibly by a deleted run. Use another id, or none.`
      : `The experiment has a run "${named}" already (${id}): use another name, none, or if_exists RETURN_EXISTING.`,
    { metadata: { run: named, run_id: id } },
  );
}

/** How a repeated request finds the run that it created. */
const CREATED_RUNS: Noun<CreatedRun> = {
  name: 'Run',
  async find(scope, { key }) {
    const run = await findRun(scope, { key });
    if (run === undefined) return undefined;
    return { run, created: false, mainTrajectory: await mainTrajectoryOf(scope, run) };
  },
};

/** Returns undefined if the run has no main trajectory or it was deleted. */
async function mainTrajectoryOf(scope: ReadScope, { mainTrajectory }: Run): Promise<Trajectory | undefined> {
  if (mainTrajectory === undefined) return undefined;
  const found = await findById(scope, mainTrajectory.id);
  return found?.hidden === true ? undefined : found;
}

export async function branchRun(
  engine: Engine,
  caller: Caller,
  newBranch: NewRunBranch,
  key: IdempotencyKey | undefined,
): Promise<CreatedRun> {
  const made = await makeOnce(engine, caller, key, CREATED_RUNS, (tx) => makeRunBranch(tx, newBranch));
  if (made.created) engine.changes.announce([runHint(made.run.key)]);
  return made;
}

/**
 * Locks are taken in the order experiment, run, trajectory, as deletions do. Writers of the source run and of its
 * trajectory are not blocked.
 */
async function makeRunBranch(tx: CallerTransaction, newBranch: NewRunBranch): Promise<MadeRun> {
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
  const { trajectoryId: id, trajectoryUid: uid, labels } = newBranch;
  const belonging = { run: key, experiment: experiment.key };
  const branch = makeBranch(tx, main, point, { id, uid, name, labels, metadataJson: '' }, belonging);
  const trajectory = await branch.catch((error: unknown) => {
    // The trajectory was deleted after it was read.
    if (error instanceof AnabranchError && error.reason === 'TRAJECTORY_NOT_FOUND') throw noMainTrajectory(source.id);
    throw error;
  });
  return insertRun(tx, newBranch, {
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
}
