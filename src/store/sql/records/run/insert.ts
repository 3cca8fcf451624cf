import { sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import { progressOf, type RunTally } from '../../../../domain/progress.ts';
import type { Plan, Run } from '../../../../domain/run.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { CreatedRun, NewRunFields } from '../../../contract/run.ts';
import { byId } from '../../kit/by_id.ts';
import type { Noun } from '../../kit/requests.ts';
import { recordStatus } from '../../kit/status/status_changes.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { CallerTransaction, NamespaceTransaction, ReadScope, Transaction } from '../../kit/transaction.ts';
import { bindLabels, flag } from '../../kit/values.ts';
import { findById, findByKey } from '../../log/trajectory/rows.ts';
import type { LockedExperiment } from '../experiment/experiments.ts';
import { bindPlan, findRun } from './rows.ts';
import { heartbeatAt } from './writing.ts';

/** Fields of a new run that do not come from the request. */
export interface Placement {
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

/**
 * Inserts a run with the next number of its locked experiment, and its first StatusChange. The transaction has read
 * time and mark.
 */
export async function insertRun(tx: CallerTransaction, newRun: NewRunFields, placed: Placement): Promise<void> {
  const { now } = tx;
  const { key, experiment, parent, main, plan } = placed;
  const number = experiment.lastRunNumber + 1n;
  const counted = tx.db.updateTable('experiments').set({ last_run_number: number }).where('key', '=', experiment.key);
  const inserted = tx.db.insertInto('runs').values({
    key,
    namespace: tx.namespace,
    id: newRun.id,
    experiment: experiment.key,
    tree: parent?.tree ?? key,
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
}

const NOTHING_YET: RunTally = Object.freeze({
  kinds: [],
  openStages: [],
  turns: { count: 0n, seconds: 0 },
  substeps: { count: 0n, seconds: 0 },
});

/** Returns `run-NUMBER` for a run without a name, with a count appended if that name is taken. */
export async function defaultName(tx: Transaction, experiment: LockedExperiment): Promise<string> {
  const plain = `run-${experiment.lastRunNumber + 1n}`;
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
export async function refuseTakenId(tx: NamespaceTransaction, id: string): Promise<void> {
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
export const CREATED_RUNS: Noun<CreatedRun> = {
  name: 'Run',
  async find(scope, { key }) {
    const run = await findRun(scope, { key });
    if (run === undefined) return undefined;
    return { run, created: false, mainTrajectory: await mainTrajectoryOf(scope, run) };
  },
};

/** Returns a run that this transaction created, with its main trajectory. */
export async function readCreated(
  tx: NamespaceTransaction,
  key: bigint,
  main: TrajectoryRef | undefined,
): Promise<CreatedRun> {
  const [run, mainTrajectory] = await inOneRoundTrip([
    findRun(tx, { key }),
    main && findByKey(tx, main.tree, main.key),
  ]);
  if (run === undefined) throw new Error('the run created in this transaction is missing');
  return { run, created: true, mainTrajectory };
}

/** Returns undefined if the run has no main trajectory or it was deleted. */
export async function mainTrajectoryOf(scope: ReadScope, { mainTrajectory }: Run): Promise<Trajectory | undefined> {
  if (mainTrajectory === undefined) return undefined;
  const found = await findById(scope, mainTrajectory.id);
  return found?.hidden === true ? undefined : found;
}
