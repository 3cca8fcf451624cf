/** Imports rows of FLE's document as described in docs/coming-from.md, and exports them again. */
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
  fromStatus,
  fromTime,
  jsonOf,
  keep,
  keptOf,
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
  programs: [
    ...[
      'id',
      'parent_id',
      'value',
      'visits',
      'completion_token_usage',
      'prompt_token_usage',
      'token_usage',
      'holdout_value',
    ],
    ...['raw_reward', 'version', 'version_description', 'model', 'achievements_json', 'instance', 'depth', 'advantage'],
    ...['ticks', 'created_at', 'timing_metrics_json'],
  ],
};

/** Returns the id of the trajectory. */
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
    const data = await stateText(client, trajectoryId, step, 'env');
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

function bytesOf(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

async function stateText(
  client: AnabranchClient,
  trajectoryId: string,
  { stepNumber, states }: Step,
  name: string,
): Promise<string | null> {
  if (states.every((state) => state.name !== name)) return null;
  return new TextDecoder().decode(await downloadState(client, { trajectoryId, stepNumber, name }));
}
