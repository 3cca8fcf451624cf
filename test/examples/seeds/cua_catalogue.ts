/** Imports CUA's tasks, validators and environments as described in docs/coming-from.md, and exports them again. */
import type { Environment, Task, Validator } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/index.ts';
import { fromHistory, fromStatuses, move, rowsOf, type Said, type Verbs } from './cua_moves.ts';
import { fromJson, jsonOf, keep, keptOf, nullable, type Row, type Rows, textOf, type Value } from './rows.ts';

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  task: ['id', 'validation_type', 'validation_query', 'expected_result', 'created_at', 'updated_at'],
  validator: ['id', 'created_at'],
  environment: [
    ...['id', 'creation_time', 'termination_time', 'status_message', 'error_message'],
    ...['created_at', 'updated_at'],
  ],
};

/** Names of their resources in Anabranch, by their ids. */
export interface Known {
  readonly tasks: ReadonlyMap<Value, string>;
  /** Types of validators. */
  readonly validators: ReadonlyMap<Value, string>;
  readonly environments: ReadonlyMap<Value, string>;
}

export async function takeOverCatalogue(client: AnabranchClient, runId: string, rows: Rows): Promise<Known> {
  const tasks = new Map(rowsOf(rows, 'task').map((row) => [row.id ?? null, textOf(row.task_id)]));
  if (tasks.size > 0)
    await client.rollouts.upsertTasks({ tasks: rowsOf(rows, 'task').map((row) => toTask(row, rows)) });
  const validators = new Map<Value, string>();
  for (const row of rowsOf(rows, 'task')) {
    const own = rowsOf(rows, 'validator').filter(({ task_id }) => task_id === row.id);
    for (const { id = null, validator_type } of own) validators.set(id, textOf(validator_type));
  }
  const environments = new Map<Value, string>();
  for (const row of rowsOf(rows, 'environment'))
    environments.set(row.id ?? null, await takeOverEnvironment(client, runId, row, rows));
  return { tasks, validators, environments };
}

function toTask(row: Row, rows: Rows) {
  const validators = rowsOf(rows, 'validator').filter(({ task_id }) => task_id === row.id);
  const kept = validators.map((each) => [each.validator_type, keep('', each, KEPT.validator ?? [])['']]);
  const isOwn = validators.some(({ validator_type }) => validator_type === row.validation_type);
  const all = isOwn ? validators : [...validators, ownOf(row)];
  return {
    id: textOf(row.task_id),
    name: textOf(row.name),
    description: textOf(row.description),
    difficulty: textOf(row.difficulty),
    category: textOf(row.category),
    appName: textOf(row.app_name),
    sourceType: textOf(row.source_type),
    ...(typeof row.max_steps === 'number' ? { maxTurns: BigInt(row.max_steps) } : {}),
    tags: { values: wordsOf(row.tags) },
    prerequisites: { values: wordsOf(row.prerequisites) },
    metadataJson: JSON.stringify({ ...keep('task', row, KEPT.task ?? []), validator: Object.fromEntries(kept) }),
    validators: Object.fromEntries(all.map((each) => [textOf(each.validator_type), toValidator(row, each)])),
  };
}

/** The validator that the columns of a task describe. */
function ownOf({ validation_type = null, validation_query = null }: Row): Row {
  return { validator_type: validation_type, validation_query };
}

function toValidator(task: Row, row: Row) {
  return {
    query: textOf(row.validation_query),
    method: textOf(row.validation_method),
    configJson: textOf(row.config_json),
    ...(row.validator_type === task.validation_type ? { expectedResult: textOf(task.expected_result) } : {}),
  };
}

function wordsOf(value: Value | undefined): string[] {
  return typeof value === 'string' ? (JSON.parse(value) as string[]) : [];
}

async function takeOverEnvironment(client: AnabranchClient, runId: string, row: Row, rows: Rows): Promise<string> {
  const columns = (KEPT.environment ?? []).filter((column) => column !== 'error_message' || row.status !== 'error');
  const config = { ...keep('environment', row, columns), config_json: fromJson(textOf(row.config_json)) };
  const environmentId = crypto.randomUUID();
  await client.rollouts.upsertEnvironment({
    runId,
    environmentId,
    type: textOf(row.env_type),
    externalId: textOf(row.gbox_id),
    labels: { values: typeof row.box_type === 'string' ? { box_type: row.box_type } : {} },
    configJson: JSON.stringify(config),
    status: row.status === 'creating' ? Status.INITIALIZING : Status.PENDING,
  });
  const become = (status: Status) => (said: Said) =>
    client.rollouts.upsertEnvironment({ runId, environmentId, status, ...said });
  const verbs: Verbs = {
    start: become(Status.RUNNING),
    complete: become(Status.COMPLETED),
    fail: become(Status.FAILED),
  };
  await move('environment', row, verbs, undefined, rowsOf(rows, 'status_history'));
  return environmentId;
}

/** The imported environments of a run, their descriptions, and the original ids. */
export interface Environments {
  readonly rows: readonly Row[];
  readonly history: readonly Row[];
  readonly ids: ReadonlyMap<string, Value>;
}

export async function giveBackEnvironments(client: AnabranchClient, runId: string): Promise<Environments> {
  const { environments } = await client.rollouts.listEnvironments({ runId });
  const given = environments.toReversed().map((environment) => ({ environment, row: fromEnvironment(environment) }));
  const history: Row[] = [];
  for (const { environment, row } of given) {
    const { changes } = await client.runs.listStatusChanges({ environmentId: environment.id, ascending: true });
    history.push(...fromHistory('environment', row.id, changes));
  }
  const ids = new Map(given.map(({ environment, row }) => [environment.id, row.id ?? null]));
  return { rows: given.map(({ row }) => row), history, ids };
}

function fromEnvironment(environment: Environment): Row {
  const { config_json } = fromJson(environment.configJson) as Row;
  return {
    ...fromStatuses('environment', environment),
    env_type: environment.type,
    gbox_id: nullable(environment.externalId),
    box_type: environment.labels.box_type ?? null,
    config_json: nullable(jsonOf(config_json)),
    ...keptOf('environment', environment.configJson),
  };
}

/** Tasks by their names in Anabranch, with their validators, in the original form. */
export async function giveBackTasks(client: AnabranchClient, taskIds: readonly string[]) {
  const { tasks } = await client.rollouts.listTasks({ taskIds: [...taskIds], view: View.FULL });
  const validator: Row[] = [];
  const validatorIds = new Map<string, Value>();
  for (const task of tasks) {
    for (const [type, each] of Object.entries(task.validators)) {
      const row = fromValidator(task, type, each);
      validatorIds.set(each.id, row.id ?? null);
      if (row.id !== undefined) validator.push(row);
    }
  }
  const given = tasks.map((task): [string, Row] => [task.id, fromTask(task)]);
  return { task: given.map(([, row]) => row), validator, validatorIds, taskRows: new Map(given) };
}

function fromTask(task: Task): Row {
  return {
    task_id: task.id,
    name: nullable(task.name),
    description: nullable(task.description),
    difficulty: nullable(task.difficulty),
    category: nullable(task.category),
    app_name: nullable(task.appName),
    source_type: nullable(task.sourceType),
    max_steps: task.maxTurns === undefined ? null : Number(task.maxTurns),
    tags: task.tags.length === 0 ? null : JSON.stringify(task.tags),
    prerequisites: task.prerequisites.length === 0 ? null : JSON.stringify(task.prerequisites),
    ...keptOf('task', task.metadataJson),
  };
}

function fromValidator(task: Task, type: string, validator: Validator): Row {
  return {
    task_id: keptOf('task', task.metadataJson).id ?? null,
    validator_type: type,
    validation_query: nullable(validator.query),
    validation_method: nullable(validator.method),
    config_json: nullable(validator.configJson),
    ...(keptOf('validator', task.metadataJson)[type] as Row | undefined),
  };
}
