/** Takes over rows of the CUA recording database, by docs/coming-from.md, and gives them back. */
import { type Run, type Stage, StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/index.ts';
import {
  fromJson,
  fromMetrics,
  fromStatus,
  fromTime,
  jsonOf,
  keep,
  keptOf,
  metricsOf,
  nullable,
  numberOf,
  type Row,
  type Rows,
  statusOf,
  textOf,
  timeOf,
  type Verb,
  wayTo,
} from './rows.ts';

const TIMES = ['start_time', 'end_time', 'created_at', 'updated_at'];
const DERIVED = ['progress_percent', 'avg_turn_time', 'estimated_total_time', 'estimated_remaining_time'];
const OF_STAGE = ['id', 'status_message', 'error_message', 'metrics_json', ...DERIVED, ...TIMES];

const RESULTS: Readonly<Record<Verb, string>> = {
  start: 'running',
  pause: 'paused',
  complete: 'completed',
  fail: 'failed',
  cancel: 'cancelled',
};

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  training: ['id', 'status_message', 'error_message', 'current_step', 'last_heartbeat', ...DERIVED, ...TIMES],
  step: OF_STAGE,
  eval: OF_STAGE,
  baseline: OF_STAGE,
  status_history: ['id', 'progress_percent', 'metadata_json', 'changed_at', 'created_at'],
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

/** What the status of a CUA step says beyond RUNNING, and the phase that says it here. */
const STEP_PHASES: Readonly<Record<string, string>> = {
  rollout_collecting: 'rollout_collection',
  rollout_running: 'rollout_execution',
  training: 'training',
};

/** Takes over one training with its history and its stages; gives the run's id. */
export async function takeOverTraining(client: AnabranchClient, rows: Rows): Promise<string> {
  const [training = {}] = rows.training ?? [];
  const runId = await makeRun(client, training);
  for (const table of ['baseline', 'step', 'eval'] as const) {
    for (const [i, row] of (rows[table] ?? []).entries()) await takeOverStage(client, runId, table, row, i);
  }
  const verbs: Record<Verb, (said: Said) => Promise<unknown>> = {
    start: (said) => client.runs.startRun({ runId, ...said }),
    pause: (said) => client.runs.pauseRun({ runId, ...said }),
    complete: (said) => client.runs.completeRun({ runId, ...said }),
    fail: (said) => client.runs.failRun({ runId, ...said }),
    cancel: (said) => client.runs.cancelRun({ runId, ...said }),
  };
  const told = (message: string) =>
    client.runs.updateRun({ runId, updateMask: { paths: ['status_message'] }, statusMessage: message });
  await move(training, verbs, told, rows.status_history ?? []);
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

async function takeOverStage(client: AnabranchClient, runId: string, table: StageTable, row: Row, place: number) {
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
  const verbs: Record<Verb, (said: Said) => Promise<unknown>> = {
    start: (said) => client.runs.startStage({ stageId, ...said }),
    pause: (said) => client.runs.pauseStage({ stageId, ...said }),
    complete: (said) => client.runs.completeStage({ stageId, ...said }),
    fail: (said) => client.runs.failStage({ stageId, ...said }),
    cancel: (said) => client.runs.cancelStage({ stageId, ...said }),
  };
  const told = (message: string) =>
    client.runs.updateStage({ stageId, updateMask: { paths: ['status_message'] }, statusMessage: message });
  await move(row, verbs, told, []);
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

/** The status message has a place of its own unless an error stands there; an error has one in what failed. */
function keptColumns(table: string, row: Row): readonly string[] {
  const placed = row.status === 'failed' && row.error_message !== null ? 'error_message' : 'status_message';
  return (KEPT[table] ?? []).filter((column) => column !== placed);
}

interface Said {
  readonly message: string;
  readonly metadataJson: string;
}

function initialOf(row: Row): Status {
  return row.status === 'initializing' ? Status.INITIALIZING : Status.PENDING;
}

/** Moves it to where it was, each move saying what its history says of it. */
async function move(
  row: Row,
  verbs: Record<Verb, (said: Said) => Promise<unknown>>,
  tell: (message: string) => Promise<unknown>,
  history: readonly Row[],
): Promise<void> {
  const status = textOf(row.status) in STEP_PHASES ? Status.RUNNING : statusOf(row.status);
  for (const verb of wayTo(status)) {
    const told = history.find(({ new_status }) => new_status === RESULTS[verb]);
    const kept = told === undefined ? '' : JSON.stringify(keep('status_history', told, KEPT.status_history ?? []));
    const message = verb === 'fail' ? row.error_message : told?.status_message;
    await verbs[verb]({ message: textOf(message), metadataJson: kept });
  }
  if (row.status !== 'failed' || row.error_message === null) await tell(textOf(row.status_message));
}

/** Gives back what takeOverTraining took, and the history that it has here. */
export async function giveBackTraining(client: AnabranchClient, runId: string): Promise<Rows> {
  const { run } = await client.runs.getRun({ runId });
  if (run === undefined) throw new Error(`no run ${runId}`);
  const training = fromRun(run);
  const id = training.id ?? null;
  const { stages } = await client.runs.listStages({ runId, view: View.FULL });
  const of = (table: StageTable) =>
    stages
      .filter(({ kind }) => kind === KINDS[table])
      .map((stage) => ({ ...fromStage(table, stage), training_id: id }));
  const { changes } = await client.runs.listStatusChanges({ runId, ascending: true });
  const history = changes.flatMap((change) => {
    const kept = keptOf('status_history', change.metadataJson);
    if (kept.id === undefined) return [];
    const [oldStatus, newStatus] = [fromStatus(change.oldStatus), fromStatus(change.newStatus)];
    const named = { old_status: oldStatus, new_status: newStatus, status_message: change.message };
    return [{ entity_type: 'training', entity_id: id, ...named, ...kept }];
  });
  return {
    training: [training],
    baseline: of('baseline'),
    eval: of('eval'),
    step: of('step'),
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
    ...fromStatuses(run),
    ...keptOf('training', run.metadataJson),
  };
}

function fromStage(table: StageTable, stage: Stage): Row {
  const common = {
    ...fromMetrics(stage.metrics, METRICS[table]),
    model_path: nullable(stage.modelUri),
    current_phase: nullable(stage.phase),
    ...fromStatuses(stage),
    ...keptOf(table, stage.metadataJson),
  };
  if (table === 'baseline') return { ...common, eval_time: fromTime(stage.timings.eval?.endTime) };
  if (table === 'eval')
    return { ...common, step: Number(stage.number), eval_time: fromTime(stage.timings.eval?.endTime) };
  const { rollout, training } = stage.timings;
  const inPhase = Object.entries(STEP_PHASES).find(([, phase]) => phase === stage.phase)?.[0];
  return {
    ...common,
    ...(stage.status === Status.RUNNING && inPhase !== undefined ? { status: inPhase } : {}),
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

function fromStatuses({ status, statusMessage }: Run | Stage): Row {
  const said = nullable(statusMessage);
  const place = status === Status.FAILED && said !== null ? 'error_message' : 'status_message';
  return { status: fromStatus(status), status_message: null, error_message: null, [place]: said };
}

function fromColumns(config: Row, columns: readonly string[]): Row {
  return Object.fromEntries(columns.map((column) => [column, config[column] ?? null]));
}
