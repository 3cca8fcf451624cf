/** Imports rows of the CUA recording database as described in docs/coming-from.md, and exports them again. */
import { type Run, type Stage, StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/index.ts';
import * as catalogue from './cua_catalogue.ts';
import { displaced, fromHistory, fromStatuses, KEPT_OF_HISTORY, move, rowsOf, type Verbs } from './cua_moves.ts';
import * as rollouts from './cua_rollouts.ts';
import {
  fromJson,
  fromMetrics,
  fromTime,
  jsonOf,
  keep,
  keptOf,
  metricsOf,
  nullable,
  numberOf,
  type Row,
  type Rows,
  textOf,
  timeOf,
} from './rows.ts';

const TIMES = ['start_time', 'end_time', 'created_at', 'updated_at'];
const DERIVED = ['progress_percent', 'avg_turn_time', 'estimated_total_time', 'estimated_remaining_time'];
const OF_STAGE = ['id', 'status_message', 'error_message', 'metrics_json', ...DERIVED, ...TIMES];

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  training: ['id', 'status_message', 'error_message', 'current_step', 'last_heartbeat', ...DERIVED, ...TIMES],
  step: OF_STAGE,
  eval: OF_STAGE,
  baseline: OF_STAGE,
  status_history: KEPT_OF_HISTORY,
  ...catalogue.KEPT,
  ...rollouts.KEPT,
};

const CONFIG = [
  ...['log_path', 'model_name', 'lora_rank', 'learning_rate', 'batch_size', 'max_tokens', 'temperature'],
  ...['kl_penalty_coef', 'seed', 'box_type', 'renderer_name', 'wandb_project', 'wandb_name'],
  ...['groups_per_batch', 'group_size', 'max_turns', 'num_substeps'],
];

const TASK_COUNTS = [
  ...['current_task_index', 'total_tasks', 'completed_tasks', 'successful_tasks'],
  ...['success_rate', 'avg_reward', 'avg_turns'],
];

const ROLLOUT_PROGRESS = ['completed_groups', 'total_groups', 'completed_envs', 'total_envs'];

const METRICS = {
  step: [
    ...['learning_rate', 'loss', 'kl_divergence', 'policy_gradient_norm', 'reward_mean', 'reward_std'],
    ...['num_trajectories', 'num_tokens'],
  ],
  eval: TASK_COUNTS,
  baseline: TASK_COUNTS,
};

type StageTable = keyof typeof METRICS;

const KINDS: Readonly<Record<StageTable, StageKind>> = {
  step: StageKind.TRAIN_STEP,
  eval: StageKind.EVAL,
  baseline: StageKind.BASELINE,
};

/** Imports one training with its history, its stages, and their rollouts. Returns the id of the run. */
export async function takeOverTraining(client: AnabranchClient, rows: Rows): Promise<string> {
  const [training = {}] = rowsOf(rows, 'training');
  const runId = await makeRun(client, training);
  const known = await catalogue.takeOverCatalogue(client, runId, rows);
  for (const table of ['baseline', 'step', 'eval'] as const) {
    for (const [i, row] of rowsOf(rows, table).entries()) {
      const stageId = await makeStage(client, runId, table, row, i);
      await rollouts.takeOverGroups(client, { stageId, table, id: row.id ?? null }, rows, known);
      await moveStage(client, stageId, table, row, rows);
    }
  }
  const verbs: Verbs = {
    start: (said) => client.runs.startRun({ runId, ...said }),
    pause: (said) => client.runs.pauseRun({ runId, ...said }),
    complete: (said) => client.runs.completeRun({ runId, ...said }),
    fail: (said) => client.runs.failRun({ runId, ...said }),
    cancel: (said) => client.runs.cancelRun({ runId, ...said }),
  };
  const told = (message: string) =>
    client.runs.updateRun({ runId, updateMask: { paths: ['status_message'] }, statusMessage: message });
  await move('training', training, verbs, told, rowsOf(rows, 'status_history'));
  return runId;
}

async function makeRun(client: AnabranchClient, row: Row): Promise<string> {
  const config = { ...keep('', row, CONFIG)[''], config_json: fromJson(textOf(row.config_json)) };
  const { run } = await client.runs.createRun({
    name: textOf(row.run_name),
    labels: { model: textOf(row.model_name) },
    configJson: JSON.stringify(config),
    plan: planOf(row),
    initialStatus: initialOf(row),
    metadataJson: JSON.stringify(keep('training', row, keptColumns('training', row))),
  });
  const runId = run?.id ?? '';
  await client.runs.updateRun({ runId, updateMask: { paths: ['phase'] }, phase: textOf(row.current_phase) });
  return runId;
}

function planOf(row: Row) {
  const stagePlan = {
    kind: StageKind.TRAIN_STEP,
    stages: numberOf(row.total_steps),
    groupsPerStage: numberOf(row.groups_per_batch),
    groupSize: numberOf(row.group_size),
    maxTurns: numberOf(row.max_turns),
    substeps: numberOf(row.num_substeps),
  };
  return { stagePlans: [stagePlan], concurrency: 1 };
}

async function makeStage(
  client: AnabranchClient,
  runId: string,
  table: StageTable,
  row: Row,
  place: number,
): Promise<string> {
  const { stage } = await client.runs.getOrCreateStage({
    runId,
    kind: KINDS[table],
    number: table === 'baseline' ? BigInt(place) : BigInt(numberOf(row.step)),
    initialStatus: initialOf(row),
    phase: textOf(row.current_phase),
    modelUri: textOf(row.model_path),
    metadataJson: JSON.stringify(keep(table, row, keptColumns(table, row))),
    ...(typeof row.batch === 'number' ? { batch: BigInt(row.batch) } : {}),
  });
  const stageId = stage?.id ?? '';
  await client.runs.updateStage({ stageId, ...(table === 'step' ? stepChanges(row) : evalChanges(row)) });
  return stageId;
}

async function moveStage(client: AnabranchClient, stageId: string, table: StageTable, row: Row, rows: Rows) {
  const verbs: Verbs = {
    start: (said) => client.runs.startStage({ stageId, ...said }),
    complete: (said) => client.runs.completeStage({ stageId, ...said }),
    fail: (said) => client.runs.failStage({ stageId, ...said }),
    cancel: (said) => client.runs.cancelStage({ stageId, ...said }),
  };
  const told = (message: string) =>
    client.runs.updateStage({ stageId, updateMask: { paths: ['status_message'] }, statusMessage: message });
  await move(table, row, verbs, told, rowsOf(rows, 'status_history'));
}

function stepChanges(row: Row) {
  const rollouts = fromJson(textOf(row.rollout_progress)) as Row;
  const training = fromJson(textOf(row.training_progress)) as Row;
  return {
    updateMask: {
      paths: ['metrics', 'model_checkpoint_uri', 'completed_substeps', 'total_substeps', 'timings'],
    },
    metrics: { ...metricsOf(row, METRICS.step), ...metricsOf(rollouts, ROLLOUT_PROGRESS) },
    modelCheckpointUri: textOf(row.checkpoint_path),
    completedSubsteps: BigInt(numberOf(training.completed_substeps)),
    totalSubsteps: BigInt(numberOf(training.total_substeps)),
    timings: {
      rollout: timeSpan(row.rollout_start_time, row.rollout_end_time),
      training: timeSpan(row.training_start_time, row.training_end_time),
    },
  };
}

function evalChanges(row: Row) {
  return {
    updateMask: { paths: ['metrics', 'timings'] },
    metrics: metricsOf(row, TASK_COUNTS),
    timings: { eval: timeSpan(null, row.eval_time) },
  };
}

function timeSpan(start: Row[string] | undefined, end: Row[string] | undefined) {
  const [startTime, endTime] = [timeOf(start), timeOf(end)];
  return { ...(startTime && { startTime }), ...(endTime && { endTime }) };
}

function keptColumns(table: string, row: Row): readonly string[] {
  const kept = displaced(table, row);
  return (KEPT[table] ?? []).filter((column) => column === kept || !/^(?:status|error)_message$/u.test(column));
}

function initialOf(row: Row): Status {
  return row.status === 'initializing' ? Status.INITIALIZING : Status.PENDING;
}

/** Exports what takeOverTraining imported, and the history that it has in Anabranch. */
export async function giveBackTraining(client: AnabranchClient, runId: string): Promise<Rows> {
  const { run } = await client.runs.getRun({ runId });
  if (run === undefined) throw new Error(`no run ${runId}`);
  const training = fromRun(run);
  const { stages } = await client.runs.listStages({ runId, view: View.FULL });
  const of = (table: StageTable) =>
    stages.flatMap((stage) => {
      if (stage.kind !== KINDS[table]) return [];
      return [{ stageId: stage.id, table, row: { ...fromStage(table, stage), training_id: training.id ?? null } }];
    });
  const [baseline, evaluation, step] = [of('baseline'), of('eval'), of('step')];
  const { changes } = await client.runs.listStatusChanges({ runId, ascending: true });
  const environments = await catalogue.giveBackEnvironments(client, runId);
  const ran = await rollouts.giveBackGroups(client, [...step, ...evaluation, ...baseline], environments);
  const history = [...fromHistory('training', training.id, changes), ...environments.history, ...ran.history];
  return {
    training: [training],
    baseline: baseline.map(({ row }) => row),
    eval: evaluation.map(({ row }) => row),
    step: step.map(({ row }) => row),
    environment: environments.rows,
    ...ran.rows,
    status_history: history,
  };
}

function fromRun(run: Run): Row {
  const { config_json, ...config } = fromJson(run.configJson) as Row;
  return {
    ...fromColumns(config, CONFIG),
    run_name: run.name,
    config_json: nullable(jsonOf(config_json)),
    total_steps: run.plan?.stagePlans[0]?.stages ?? null,
    current_phase: nullable(run.phase),
    ...fromStatuses('training', run),
    ...keptOf('training', run.metadataJson),
  };
}

function fromStage(table: StageTable, stage: Stage): Row {
  const common = {
    ...fromMetrics(stage.metrics, METRICS[table]),
    model_path: nullable(stage.modelUri),
    current_phase: nullable(stage.phase),
    ...fromStatuses(table, stage),
    ...keptOf(table, stage.metadataJson),
  };
  if (table === 'baseline') return { ...common, eval_time: fromTime(stage.timings.eval?.endTime) };
  if (table === 'eval')
    return { ...common, step: Number(stage.number), eval_time: fromTime(stage.timings.eval?.endTime) };
  const { rollout, training } = stage.timings;
  return {
    ...common,
    step: Number(stage.number),
    batch: stage.batch === undefined ? null : Number(stage.batch),
    checkpoint_path: nullable(stage.modelCheckpointUri),
    rollout_progress: JSON.stringify(fromMetrics(stage.metrics, ROLLOUT_PROGRESS)),
    training_progress: JSON.stringify({
      completed_substeps: Number(stage.completedSubsteps),
      total_substeps: Number(stage.totalSubsteps),
    }),
    rollout_start_time: fromTime(rollout?.startTime),
    rollout_end_time: fromTime(rollout?.endTime),
    training_start_time: fromTime(training?.startTime),
    training_end_time: fromTime(training?.endTime),
  };
}

function fromColumns(config: Row, columns: readonly string[]): Row {
  return Object.fromEntries(columns.map((column) => [column, config[column] ?? null]));
}
