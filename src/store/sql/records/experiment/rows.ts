import { sql } from 'kysely';
import { experimentNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import type { Experiment } from '../../../../domain/run.ts';
import type { ExperimentReference } from '../../../contract/experiment.ts';
import type { View } from '../../../contract/view.ts';
import type { Db } from '../../kit/engine.ts';
import { EXPERIMENTS } from '../../kit/tables/runs.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { ReadScope } from '../../kit/transaction.ts';

type ExperimentRow = Awaited<ReturnType<ReturnType<typeof selectExperiments>['execute']>>[number];

/** Selects visible experiments (`x`) with their number of runs. */
export function selectExperiments(db: Db, namespace: string, view: View) {
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
export async function experimentKey({ db, namespace }: ReadScope, reference: ExperimentReference): Promise<bigint> {
  const visible = db
    .selectFrom('experiments')
    .select('key')
    .where('namespace', '=', namespace)
    .where(sql<boolean>`not hidden`);
  const row = await ('id' in reference
    ? visible.where('id', '=', reference.id)
    : visible.where('name', '=', reference.name)
  ).executeTakeFirst();
  if (row === undefined) throw experimentNotFound('id' in reference ? reference.id : reference.name);
  return row.key;
}

export function readExperiment(row: ExperimentRow): Experiment {
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
