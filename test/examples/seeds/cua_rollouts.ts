/**
 * Imports CUA's groups and rollouts with their turns and validations as described in docs/coming-from.md, and exports
 * them again.
 */
import type { Group, Rollout, Validation } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { GetRolloutResponse } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/index.ts';
import { type Environments, giveBackTasks, type Known } from './cua_catalogue.ts';
import { displaced, fromHistory, fromStatuses, move, rowsOf, statusHere, type Verbs } from './cua_moves.ts';
import { giveBackTurns, takeOverTurns } from './cua_turns.ts';
import {
  fromMetrics,
  fromTime,
  keep,
  keptOf,
  metricsOf,
  nullable,
  numberOf,
  type Row,
  type Rows,
  textOf,
  timeOf,
  type Value,
} from './rows.ts';

const ESTIMATES = ['progress_percent', 'avg_turn_time', 'estimated_total_time', 'estimated_remaining_time'];
const RESULT = [...['task_completed', 'task_success', 'agent_reported_success', 'reward', 'errors', 'summary_json']];

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  group: [
    ...['id', 'status', 'current_phase', 'status_message', 'error_message', 'start_time', 'end_time'],
    ...['num_rollouts', 'completed_rollouts', 'reward_mean', 'reward_std', 'success_count', 'metrics_json'],
    ...[...ESTIMATES, 'created_at', 'updated_at'],
  ],
  rollout: [
    ...['id', 'batch', 'is_eval', 'progress_percent', 'current_turn', 'num_turns', 'trajectory_path'],
    ...['current_phase', 'status_message', 'error_message', 'validation_passed', ...RESULT],
    ...['start_time', 'end_time', 'created_at', 'updated_at'],
  ],
  validation: ['id', 'validation_time', 'execution_time', 'created_at'],
};

const COUNTERS = [
  ...['rollout_time', 'temperature', 'num_total_actions', 'consecutive_repeated_actions'],
  ...['parse_errors', 'tool_name_errors', 'tool_arg_errors', 'runtime_errors'],
  ...['turn_first_success', 'turn_task_completed'],
];
const FLAGS = ['ran_out_of_turns', 'attempted_completion'];
const TIMES = ['env_creation_time', 'agent_init_time', 'task_start_time', 'task_end_time', 'validation_time'];
/** Columns whose fields belong to an attempt. A pending row has none. */
const OF_ATTEMPT = [...TIMES, ...COUNTERS, ...FLAGS, 'env_id'];
const VALIDATION = [
  ...[
    'validation_query',
    'expected_result',
    'actual_result',
    'success',
    'execution_time',
    'error_message',
    'details_json',
  ],
];

/** A stage in Anabranch, and the original row: of `step`, `eval` or `baseline`. */
export interface Source {
  readonly stageId: string;
  readonly table: string;
  readonly id: Value;
}

/** The groups of a stage, and their rollouts with all that belongs to them. */
export async function takeOverGroups(client: AnabranchClient, source: Source, rows: Rows, known: Known): Promise<void> {
  const { stageId } = source;
  const isHere = (row: Row) => row.source_type === source.table && row[`${source.table}_id`] === source.id;
  for (const row of rowsOf(rows, 'group').filter(isHere)) {
    await client.rollouts.upsertGroup({
      stageId,
      number: BigInt(numberOf(row.group_num)),
      ...(typeof row.batch === 'number' ? { batch: BigInt(row.batch) } : {}),
      metadataJson: JSON.stringify(keep('group', row, KEPT.group ?? [])),
    });
  }
  for (const row of rowsOf(rows, 'rollout').filter(isHere)) await takeOverRollout(client, stageId, row, rows, known);
}

async function takeOverRollout(client: AnabranchClient, stageId: string, row: Row, rows: Rows, known: Known) {
  const rolloutId = textOf(row.rollout_id);
  const validations = rowsOf(rows, 'validation').filter(({ rollout_id }) => rollout_id === row.id);
  await client.rollouts.createRollouts({ stageId, rollouts: [newRollout(row, validations, known)] });
  if (isPending(row)) return move('rollout', row, {}, tell(client, rolloutId), rowsOf(rows, 'status_history'));
  const attempt = await work(client, stageId, row, rows);
  const environment = known.environments.get(row.env_id ?? null);
  await client.rollouts.updateRollout({
    rolloutId,
    updateMask: { paths: ['metrics', 'timings', 'environment_ids'] },
    metrics: { ...metricsOf(row, COUNTERS), ...flagsOf(row) },
    timings: timingsOf(row),
    environmentIds: environment === undefined ? [] : [environment],
  });
  const told = validations.map((each) => toValidation(each, known));
  const result = resultOf(row);
  const verbs: Verbs = {
    start: (said) => client.rollouts.startRollout({ rolloutId, attempt, ...said }),
    complete: (said) => client.rollouts.completeRollout({ rolloutId, attempt, result, validations: told, ...said }),
    fail: (said) => client.rollouts.failRollout({ rolloutId, attempt, result, ...said }),
    cancel: (said) => client.rollouts.cancelRollout({ rolloutId, ...said }),
  };
  await move('rollout', row, verbs, tell(client, rolloutId), rowsOf(rows, 'status_history'));
  if (row.status === 'completed') return;
  for (const validation of told) await client.rollouts.recordValidation({ rolloutId, validation });
}

function tell(client: AnabranchClient, rolloutId: string) {
  return (statusMessage: string) =>
    client.rollouts.updateRollout({ rolloutId, updateMask: { paths: ['status_message'] }, statusMessage });
}

function isPending(row: Row): boolean {
  return statusHere('rollout', row.status) === Status.PENDING;
}

function newRollout(row: Row, validations: readonly Row[], known: Known) {
  return {
    groupNumber: BigInt(numberOf(row.group_num)),
    number: BigInt(numberOf(row.env_index)),
    rolloutId: textOf(row.rollout_id),
    taskId: known.tasks.get(row.task_id ?? null) ?? '',
    labels: { rollout: `${numberOf(row.id)}` },
    modelUri: textOf(row.model_path),
    ...(typeof row.max_turns === 'number' ? { maxTurns: BigInt(row.max_turns) } : {}),
    metadataJson: JSON.stringify({
      ...keep('rollout', row, keptColumns(row, validations)),
      validation: Object.fromEntries(
        validations.map((each) => [`${each.validator_id}`, keep('', each, keptOfValidation(row))['']]),
      ),
    }),
  };
}

/** Claims it, and writes its turns as the trajectory of the attempt. Returns the attempt. */
async function work(client: AnabranchClient, stageId: string, row: Row, rows: Rows): Promise<number> {
  const { claims } = await client.rollouts.claimRollouts({
    stageId,
    labels: { rollout: `${numberOf(row.id)}` },
    workerId: 'taken over from CUA',
    leaseDuration: { seconds: 3600n },
  });
  const [{ rollout, trajectory } = {}] = claims;
  const attempt = rollout?.attempt ?? 0;
  const phase = textOf(row.current_phase);
  if (phase !== '') {
    const updateMask = { paths: ['phase'] };
    await client.rollouts.updateRollout({ rolloutId: rollout?.id ?? '', attempt, updateMask, phase });
  }
  const turns = rowsOf(rows, 'turn').filter(({ rollout_id }) => rollout_id === row.id);
  await takeOverTurns(client, trajectory?.id ?? '', textOf(row.trajectory_data_json), { ...rows, turn: turns });
  return attempt;
}

function keptOfValidation(rollout: Row): readonly string[] {
  return [...(KEPT.validation ?? []), ...(isPending(rollout) ? VALIDATION : [])];
}

/** Columns that a row keeps although there is a field, because no call can set it in that status. */
function keptColumns(row: Row, validations: readonly Row[]): readonly string[] {
  const status = statusHere('rollout', row.status);
  const ended = status === Status.COMPLETED || status === Status.FAILED;
  const placed = new Set([
    displaced('rollout', row) === 'status_message' ? 'error_message' : 'status_message',
    ...(ended ? RESULT : []),
    ...(status === Status.PENDING ? [] : ['current_phase']),
    ...(validations.length > 0 && !isPending(row) ? ['validation_passed'] : []),
  ]);
  return [...(KEPT.rollout ?? []), ...(isPending(row) ? OF_ATTEMPT : [])].filter((column) => !placed.has(column));
}

function flagsOf(row: Row): { [name: string]: number } {
  return Object.fromEntries(
    FLAGS.flatMap((flag) => (typeof row[flag] === 'boolean' ? [[flag, Number(row[flag])]] : [])),
  );
}

function timingsOf(row: Row) {
  const span = (start: Value | undefined, end: Value | undefined) => {
    const [startTime, endTime] = [timeOf(start), timeOf(end)];
    return { ...(startTime && { startTime }), ...(endTime && { endTime }) };
  };
  return {
    env_creation: span(null, row.env_creation_time),
    agent_init: span(null, row.agent_init_time),
    task: span(row.task_start_time, row.task_end_time),
    validation: span(null, row.validation_time),
  };
}

function resultOf(row: Row) {
  const flag = (column: string) => (typeof row[column] === 'boolean' ? row[column] : undefined);
  return {
    reward: typeof row.reward === 'number' ? row.reward : undefined,
    taskCompleted: flag('task_completed'),
    agentReportedSuccess: flag('agent_reported_success'),
    success: flag('task_success'),
    errors: typeof row.errors === 'string' ? (JSON.parse(row.errors) as string[]) : [],
    summaryJson: textOf(row.summary_json),
  };
}

function toValidation(row: Row, known: Known) {
  const seconds = row.execution_time;
  return {
    name: known.validators.get(row.validator_id ?? null) ?? '',
    success: row.success === true,
    query: textOf(row.validation_query),
    expectedResult: textOf(row.expected_result),
    actualResult: textOf(row.actual_result),
    ...(typeof seconds === 'number' ? { executionDuration: durationOf(seconds) } : {}),
    errorMessage: textOf(row.error_message),
    detailsJson: textOf(row.details_json),
  };
}

function durationOf(seconds: number) {
  return { seconds: BigInt(Math.trunc(seconds)), nanos: Math.round((seconds % 1) * 1000) * 1_000_000 };
}

/** An imported stage, and its row. */
export interface GivenStage {
  readonly stageId: string;
  readonly table: string;
  readonly row: Row;
}

export async function giveBackGroups(
  client: AnabranchClient,
  stages: readonly GivenStage[],
  environments: Environments,
) {
  const found: { stage: GivenStage; group: Row; rollout: Rollout }[] = [];
  const group: Row[] = [];
  for (const stage of stages) {
    const { groups } = await client.rollouts.listGroups({ stageId: stage.stageId, view: View.FULL });
    const rows = new Map(groups.map((each) => [each.id, fromGroup(stage, each)]));
    group.push(...rows.values());
    const { rollouts } = await client.rollouts.listRollouts({ stageId: stage.stageId, view: View.FULL });
    found.push(...rollouts.map((rollout) => ({ stage, group: rows.get(rollout.groupId) ?? {}, rollout })));
  }
  const taskIds = [...new Set(found.map(({ rollout }) => rollout.taskId))].filter((id) => id !== '');
  const { task, validator, taskRows, validatorIds } = await giveBackTasks(client, taskIds);
  const rows = {
    rollout: [] as Row[],
    validation: [] as Row[],
    turn: [] as Row[],
    action: [] as Row[],
    obs: [] as Row[],
  };
  const history: Row[] = [];
  for (const { stage, group: inGroup, rollout } of found) {
    const record = await client.rollouts.getRollout({ rolloutId: rollout.id });
    const turns = await giveBackTurns(client, rollout.trajectoryId);
    const given = fromRollout(rollout, record);
    const row: Row = {
      ...given,
      ...fromSource(stage),
      group_id: inGroup.id ?? null,
      env_id: environments.ids.get(record.environmentIds[0] ?? '') ?? given.env_id ?? null,
      task_id: taskRows.get(rollout.taskId)?.id ?? null,
      trajectory_data_json: turns.data,
    };
    const ofRollout = { rollout_id: row.id ?? null };
    const kept = keptOf('validation', rollout.metadataJson);
    rows.rollout.push(row);
    for (const validation of record.validations) {
      const validator_id = validatorIds.get(validation.validatorId) ?? null;
      const own = kept[`${validator_id}`] as Row | undefined;
      rows.validation.push({ ...fromValidation(validation), validator_id, ...own, ...ofRollout });
    }
    if (rollout.status === Status.PENDING) {
      for (const [validator_id, own] of Object.entries(kept)) {
        rows.validation.push({ validator_id: Number(validator_id), ...(own as Row), ...ofRollout });
      }
    }
    rows.turn.push(...turns.turn.map((turn) => ({ ...turn, ...ofRollout })));
    rows.action.push(...turns.action);
    rows.obs.push(...turns.obs);
    const { changes } = await client.runs.listStatusChanges({ rolloutId: rollout.id, ascending: true });
    history.push(...fromHistory('rollout', row.id, changes));
  }
  return { rows: { task, validator, group, ...rows }, history };
}

function fromSource({ table, row }: GivenStage): Row {
  return { source_type: table, step_id: null, eval_id: null, baseline_id: null, [`${table}_id`]: row.id ?? null };
}

function fromGroup(stage: GivenStage, group: Group): Row {
  return {
    ...fromSource(stage),
    group_num: Number(group.number),
    batch: group.batch === undefined ? null : Number(group.batch),
    ...keptOf('group', group.metadataJson),
  };
}

function fromRollout(rollout: Rollout, { validations }: GetRolloutResponse): Row {
  const { result, timings, metrics } = rollout;
  const errors = result?.errors ?? [];
  return {
    rollout_id: rollout.id,
    group_num: Number(rollout.groupNumber),
    env_index: Number(rollout.number),
    model_path: rollout.modelUri,
    ...fromStatuses('rollout', rollout),
    current_phase: nullable(rollout.phase),
    env_creation_time: fromTime(timings.env_creation?.endTime),
    agent_init_time: fromTime(timings.agent_init?.endTime),
    task_start_time: fromTime(timings.task?.startTime),
    task_end_time: fromTime(timings.task?.endTime),
    validation_time: fromTime(timings.validation?.endTime),
    task_completed: result?.taskCompleted ?? null,
    task_success: result?.success ?? null,
    agent_reported_success: result?.agentReportedSuccess ?? null,
    reward: result?.reward ?? null,
    errors: errors.length === 0 ? null : JSON.stringify(errors),
    summary_json: nullable(result?.summaryJson),
    max_turns: rollout.maxTurns === undefined ? null : Number(rollout.maxTurns),
    ...fromMetrics(metrics, COUNTERS),
    ...Object.fromEntries(FLAGS.map((flag) => [flag, metrics[flag] === undefined ? null : metrics[flag] === 1])),
    ...(validations.length > 0 ? { validation_passed: rollout.validationPassed ?? null } : {}),
    ...keptOf('rollout', rollout.metadataJson),
  };
}

function fromValidation(validation: Validation): Row {
  const took = validation.executionDuration;
  return {
    validation_query: nullable(validation.query),
    expected_result: nullable(validation.expectedResult),
    actual_result: nullable(validation.actualResult),
    success: validation.success,
    execution_time: took === undefined ? null : Number(took.seconds) + took.nanos / 1e9,
    error_message: nullable(validation.errorMessage),
    details_json: nullable(validation.detailsJson),
  };
}
