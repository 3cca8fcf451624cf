/** Takes over rows of FLE, by docs/coming-from.md, and gives them back. */
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AnabranchClient,
  downloadState,
  openWriter,
  readSteps,
  type StepInit,
} from '../../../src/client/index.ts';
import {
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
  type Value,
} from './rows.ts';

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  trajectories: ['id', 'start_time', 'end_time'],
  steps: ['id'],
  game_states: ['id', 'timestamp'],
  programs: ['id', 'parent_id', 'achievements_json', 'timing_metrics_json'],
};

const PROGRAM_METRICS = [
  'raw_reward',
  'holdout_value',
  'advantage',
  'visits',
  'ticks',
  'depth',
  'prompt_token_usage',
  'completion_token_usage',
  'token_usage',
];

// ---- The tables of the document ----

/** Gives the trajectory's id. */
export async function takeOverTrajectory(client: AnabranchClient, rows: Rows): Promise<string> {
  const [row = {}] = rows.trajectories ?? [];
  const trajectoryId = crypto.randomUUID();
  const metadataJson = jsonOf(keep('trajectories', row, KEPT.trajectories ?? []));
  await client.trajectories.createTrajectory({ trajectoryId, taskId: textOf(row.task_id), metadataJson, root: {} });
  const writer = await openWriter(client, { trajectoryId });
  for (const step of rows.steps ?? []) {
    const state = rows.game_states?.find(({ step_id }) => step_id === step.id);
    await writer.append(toStep(step, state));
  }
  const status = statusOf(row.status);
  if (status === Status.COMPLETED || status === Status.FAILED) await writer.seal(status);
  else await writer.close();
  return trajectoryId;
}

function toStep(step: Row, state: Row | undefined): StepInit {
  const kept = {
    ...keep('steps', step, KEPT.steps ?? []),
    ...(state === undefined ? {} : keep('game_states', state, KEPT.game_states ?? [])),
  };
  return {
    stepNumber: BigInt(numberOf(step.step_number)),
    actions: [{ type: 'code', content: { text: textOf(step.agent_code) } }],
    observations: [{ type: 'response', content: { text: textOf(step.environment_feedback) } }],
    endTime: timeOf(step.timestamp),
    metadata: kept,
    states: typeof step.game_state === 'string' ? { env: bytesOf(step.game_state) } : {},
  };
}

export async function giveBackTrajectory(client: AnabranchClient, trajectoryId: string): Promise<Rows> {
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
  const kept = keptOf('trajectories', trajectory?.metadataJson ?? '');
  const [steps, states]: [Row[], Row[]] = [[], []];
  for await (const { step } of readSteps(client, { trajectoryId, startStepNumber: 1n })) {
    const stepId = keptOf('steps', step.metadataJson).id ?? null;
    const data = await stateText(client, step, 'env');
    steps.push({ ...fromStep(step, data), id: stepId, trajectory_id: kept.id ?? null });
    if (data === null) continue;
    const keptState = keptOf('game_states', step.metadataJson);
    states.push({ ...keptState, trajectory_id: kept.id ?? null, step_id: stepId, state_data: data });
  }
  const row = { ...kept, task_id: trajectory?.taskId ?? '', status: fromStatus(trajectory?.status ?? 0) };
  return { trajectories: [row], steps, game_states: states };
}

function fromStep(step: Step, state: Value): Row {
  return {
    step_number: Number(step.stepNumber),
    agent_code: step.actions[0]?.content?.text ?? null,
    environment_feedback: step.observations[0]?.content?.text ?? null,
    game_state: state,
    timestamp: fromTime(step.endTime),
  };
}

// ---- The table of the code ----

/** Gives the run's id: one for the version that all these programs are of. They are one chain. */
export async function takeOverPrograms(client: AnabranchClient, programs: readonly Row[]): Promise<string> {
  const [first = {}] = programs;
  const { sweep_id } = JSON.parse(textOf(first.meta)) as Record<string, string>;
  const { run } = await client.runs.createRun({
    name: `fle version ${numberOf(first.version)}`,
    configJson: JSON.stringify({ model: textOf(first.model) }),
    description: textOf(first.version_description),
    labels: { model: textOf(first.model), version: `${numberOf(first.version)}`, sweep_id: sweep_id ?? '' },
    mainTrajectory: { root: {} },
  });
  const [runId, trajectoryId] = [run?.id ?? '', run?.mainTrajectoryId ?? ''];
  const labels = { instance: `${numberOf(first.instance)}` };
  await client.trajectories.updateTrajectory({ trajectoryId, updateMask: { paths: ['labels'] }, labels });
  await using writer = await openWriter(client, { trajectoryId });
  for (const program of programs) await writer.append(toProgramStep(program));
  return runId;
}

function toProgramStep(row: Row): StepInit {
  return {
    actions: [{ type: 'code', content: { text: textOf(row.code) } }],
    observations: [{ type: 'response', content: { text: textOf(row.response) } }],
    reward: typeof row.value === 'number' ? row.value : undefined,
    metrics: metricsOf(row, PROGRAM_METRICS),
    infoJson: textOf(row.meta),
    metadata: keep('programs', row, KEPT.programs ?? []),
    endTime: timeOf(row.created_at),
    states: {
      ...(typeof row.state_json === 'string' ? { env: bytesOf(row.state_json) } : {}),
      agent: bytesOf(textOf(row.conversation_json)),
    },
  };
}

export async function giveBackPrograms(client: AnabranchClient, runId: string): Promise<Rows> {
  const { run } = await client.runs.getRun({ runId });
  const trajectoryId = run?.mainTrajectoryId ?? '';
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
  const programs: Row[] = [];
  for await (const { step } of readSteps(client, { trajectoryId, startStepNumber: 1n })) {
    programs.push({
      ...keptOf('programs', step.metadataJson),
      ...fromMetrics(step.metrics, PROGRAM_METRICS),
      code: step.actions[0]?.content?.text ?? null,
      response: step.observations[0]?.content?.text ?? null,
      value: step.reward ?? null,
      state_json: await stateText(client, step, 'env'),
      conversation_json: await stateText(client, step, 'agent'),
      meta: nullable(step.infoJson),
      created_at: fromTime(step.endTime)?.replace('T', ' ').slice(0, 19) ?? null,
      instance: Number(trajectory?.labels.instance),
      version: Number(run?.labels.version),
      version_description: run?.description ?? '',
      model: run?.labels.model ?? '',
    });
  }
  return { programs };
}

function bytesOf(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

async function stateText(client: AnabranchClient, step: Step, name: string): Promise<string | null> {
  const state = step.states.find((each) => each.name === name);
  return state === undefined ? null : new TextDecoder().decode(await downloadState(client, state.digest));
}
