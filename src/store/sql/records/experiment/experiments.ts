import { type Selectable, sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { AnabranchError, experimentNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { DEFAULT_EXPERIMENT, type Experiment } from '../../../../domain/run.ts';
import type {
  ExperimentChanges,
  ExperimentFilter,
  ExperimentReference,
  NewExperiment,
} from '../../../contract/experiment.ts';
import type { IdempotencyKey, Page, View } from '../../../contract/request.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { makeOnce, type Noun } from '../../kit/requests.ts';
import { EXPERIMENTS } from '../../kit/tables/runs.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { Tables } from '../../kit/tables.ts';
import { type NamespaceTransaction, type ReadScope, writeIn } from '../../kit/transaction.ts';
import { UniqueViolation } from '../../kit/unique_violation.ts';
import { changedColumns, isSet } from '../../kit/values.ts';

export async function createExperiment(
  engine: Engine,
  caller: Caller,
  newExperiment: NewExperiment,
  key: IdempotencyKey | undefined,
): Promise<Experiment> {
  const noun: Noun<Experiment> = { name: 'Experiment', find: (scope, { key: row }) => findByKey(scope, row) };
  return makeOnce(engine, caller, key, noun, async (tx) => {
    const there = await findTaken(tx, newExperiment);
    const row = there?.key ?? (await insertExperiment(tx, newExperiment));
    const made = await findByKey(tx, row);
    if (made === undefined) throw new Error('the experiment created or found in this transaction is missing');
    return { ref: { tree: row, key: row }, id: made.id, made };
  });
}

async function findByKey({ db, namespace }: ReadScope, key: bigint): Promise<Experiment | undefined> {
  const row = await selectExperiments(db, namespace, 'FULL').where('x.key', '=', key).executeTakeFirst();
  return row === undefined ? undefined : readExperiment(row);
}

/**
 * Returns the experiment with the name, if it may exist. A deleted experiment keeps its id but not its name. Errors:
 * EXPERIMENT_EXISTS.
 */
async function findTaken(
  tx: NamespaceTransaction,
  { id, name, returnExisting = false }: NewExperiment,
): Promise<{ readonly key: bigint } | undefined> {
  const taken = await tx.db
    .selectFrom('experiments')
    .select(['key', 'id', 'name', 'hidden'])
    .where('namespace', '=', tx.namespace)
    .where((eb) => eb.or([eb('id', '=', id), eb.and([eb('name', '=', name), sql<boolean>`not hidden`])]))
    .execute();
  const named = taken.find((row) => row.name === name && !isSet(row.hidden));
  if (named !== undefined && returnExisting) return named;
  if (taken.length > 0) throw experimentExists(taken.some((row) => row.id === id) ? id : name);
  return undefined;
}

async function insertExperiment(tx: NamespaceTransaction, newExperiment: NewExperiment): Promise<bigint> {
  const key = await tx.engine.keys.next(tx.db, 'experiments');
  const now = await tx.readNow();
  await tx.db
    .insertInto('experiments')
    .values({
      key,
      namespace: tx.namespace,
      id: newExperiment.id,
      name: newExperiment.name,
      description: newExperiment.description,
      environment_name: newExperiment.environmentName,
      environment_config_json: newExperiment.environmentConfigJson,
      agent_type: newExperiment.agentType,
      agent_config_json: newExperiment.agentConfigJson,
      default_config_json: newExperiment.defaultConfigJson,
      max_steps: newExperiment.maxSteps ?? null,
      seed: newExperiment.seed ?? null,
      tags: JSON.stringify(newExperiment.tags),
      metadata_json: newExperiment.metadataJson,
      last_run_number: 0n,
      hidden: 0,
      create_time: now,
      update_time: now,
    })
    .execute();
  return key;
}

export async function listExperiments(
  { engine, db, namespace }: ReadScope,
  filter: ExperimentFilter,
  page: Page<bigint>,
  view: View,
): Promise<Experiment[]> {
  let query = selectExperiments(db, namespace, view);
  if (filter.environmentName !== undefined) query = query.where('x.environment_name', '=', filter.environmentName);
  if (filter.agentType !== undefined) query = query.where('x.agent_type', '=', filter.agentType);
  for (const tag of filter.tags ?? []) query = query.where(engine.sql.hasItem(sql.ref('x.tags'), tag));
  if (page.after !== undefined) query = query.where('x.key', '<', page.after);
  const rows = await query.orderBy('x.key', 'desc').limit(page.limit).execute();
  return rows.map(readExperiment);
}

export async function updateExperiment(
  engine: Engine,
  namespace: string,
  id: string,
  changes: ExperimentChanges,
): Promise<Experiment> {
  try {
    return await writeIn(engine, namespace, async (tx) => {
      const row = await lockExperiment(tx, { id });
      await tx.db
        .updateTable('experiments')
        .set({ update_time: engine.sql.now, ...columnsOf(changes) })
        .where('key', '=', row.key)
        .execute();
      const updated = await findByKey(tx, row.key);
      if (updated === undefined) throw experimentNotFound(id);
      return updated;
    });
  } catch (error) {
    if (error instanceof UniqueViolation) throw experimentExists(changes.name ?? id);
    throw error;
  }
}

/** Returns the columns that the given fields are stored in. */
function columnsOf(changes: ExperimentChanges) {
  return changedColumns({
    name: changes.name,
    description: changes.description,
    environment_name: changes.environmentName,
    environment_config_json: changes.environmentConfigJson,
    agent_type: changes.agentType,
    agent_config_json: changes.agentConfigJson,
    default_config_json: changes.defaultConfigJson,
    max_steps: 'maxSteps' in changes ? (changes.maxSteps ?? null) : undefined,
    seed: 'seed' in changes ? (changes.seed ?? null) : undefined,
    tags: changes.tags && JSON.stringify(changes.tags),
    metadata_json: changes.metadataJson,
  });
}

/** Columns of a locked experiment. */
export type LockedExperiment = Pick<
  Selectable<Tables['experiments']>,
  'key' | 'default_config_json' | 'last_run_number'
>;

/** The holder of the lock assigns numbers and names to the experiment's runs. Errors: EXPERIMENT_NOT_FOUND. */
export async function lockExperiment(
  tx: NamespaceTransaction,
  reference: ExperimentReference,
): Promise<LockedExperiment> {
  const locked = await tryLockExperiment(tx, reference);
  if (locked === undefined) throw notFound(reference);
  return locked;
}

/** Locks the experiment of runs that name none. Creates it if it is missing; concurrent callers get the same one. */
export async function lockDefaultExperiment(tx: NamespaceTransaction, id: string): Promise<LockedExperiment> {
  const reference = { name: DEFAULT_EXPERIMENT };
  const locked = await tryLockExperiment(tx, reference);
  if (locked !== undefined) return locked;
  await insertExperiment(tx, { ...EMPTY, id, ...reference });
  return lockExperiment(tx, reference);
}

async function tryLockExperiment(
  tx: NamespaceTransaction,
  reference: ExperimentReference,
): Promise<LockedExperiment | undefined> {
  const query = visible(tx, reference).select(['key', 'default_config_json', 'last_run_number']);
  return tx.engine.locks.rows(query, 'write').executeTakeFirst();
}

function visible({ db, namespace }: ReadScope, reference: ExperimentReference) {
  const all = db.selectFrom('experiments').where('namespace', '=', namespace).where(sql<boolean>`not hidden`);
  return 'id' in reference ? all.where('id', '=', reference.id) : all.where('name', '=', reference.name);
}

function notFound(reference: ExperimentReference): AnabranchError {
  return experimentNotFound('id' in reference ? reference.id : reference.name);
}

const EMPTY = Object.freeze({
  description: '',
  environmentName: '',
  environmentConfigJson: '',
  agentType: '',
  agentConfigJson: '',
  defaultConfigJson: '',
  maxSteps: undefined,
  seed: undefined,
  tags: [],
  metadataJson: '',
});

function experimentExists(named: string): AnabranchError {
  return new AnabranchError(
    'EXPERIMENT_EXISTS',
    `Experiment "${named}" exists; its id may belong to a deleted one. Use another name or id, or read it with GetExperiment.`,
    { metadata: { experiment: named } },
  );
}

type ExperimentRow = Awaited<ReturnType<ReturnType<typeof selectExperiments>['execute']>>[number];

/** Selects visible experiments (`x`) with their number of runs. */
function selectExperiments(db: Db, namespace: string, view: View) {
  return db
    .selectFrom('experiments as x')
    .select(columnsIn(EXPERIMENTS, 'x', view, ['namespace', 'last_run_number', 'hidden']))
    .select((eb) =>
      eb
        .selectFrom('runs as n')
        .select((count) => count.fn.countAll<bigint>().as('count'))
        .whereRef('n.experiment', '=', 'x.key')
        // Matches the condition of the index of names literally, so that the count is an index-only scan.
        .where(sql<boolean>`not n.hidden`)
        .as('run_count'),
    )
    .where('x.namespace', '=', namespace)
    .where(sql<boolean>`not x.hidden`);
}

/** Returns an experiment by id or name in FULL view, or undefined. */
export async function findExperiment(
  { db, namespace }: ReadScope,
  reference: ExperimentReference,
): Promise<Experiment | undefined> {
  const query = selectExperiments(db, namespace, 'FULL');
  const row = await ('id' in reference
    ? query.where('x.id', '=', reference.id)
    : query.where('x.name', '=', reference.name)
  ).executeTakeFirst();
  return row === undefined ? undefined : readExperiment(row);
}

/** Returns the key of an experiment. Errors: EXPERIMENT_NOT_FOUND. */
export async function experimentKey(scope: ReadScope, reference: ExperimentReference): Promise<bigint> {
  const row = await visible(scope, reference).select('key').executeTakeFirst();
  if (row === undefined) throw notFound(reference);
  return row.key;
}

function readExperiment(row: ExperimentRow): Experiment {
  return {
    key: row.key,
    id: row.id,
    name: row.name,
    description: row.description,
    environmentName: row.environment_name,
    environmentConfigJson: row.environment_config_json,
    agentType: row.agent_type,
    agentConfigJson: row.agent_config_json,
    defaultConfigJson: row.default_config_json,
    maxSteps: row.max_steps ?? undefined,
    seed: row.seed ?? undefined,
    tags: JSON.parse(row.tags) as string[],
    metadataJson: row.metadata_json,
    runCount: row.run_count ?? 0n,
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
  };
}
