/**
 * Imports CUA's turns with their actions and observations as described in docs/coming-from.md, and exports them again.
 */
import type { Action, Observation, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ActionInit,
  type AnabranchClient,
  downloadState,
  type ObservationInit,
  openWriter,
  readSteps,
  type StepInit,
} from '../../../src/client/index.ts';
import { fromTime, keep, keptOf, metricsOf, numberOf, type Row, type Rows, textOf, timeOf } from './rows.ts';

export const KEPT: Readonly<Record<string, readonly string[]>> = {
  turn: ['id', 'created_at'],
  action: ['id', 'created_at'],
  obs: ['id', 'created_at'],
};

const CONTENTS = { screenshot_uri: 'uri', text_content: 'text', model_input_json: 'json' } as const;

/**
 * The turns of one rollout, as the trajectory of its attempt. The collected training text, if any, is a state of the
 * root.
 */
export async function takeOverTurns(
  client: AnabranchClient,
  trajectoryId: string,
  collected: string,
  rows: Rows,
): Promise<void> {
  await using writer = await openWriter(client, { trajectoryId });
  await writer.append({ states: collected === '' ? {} : { trajectory_data: new TextEncoder().encode(collected) } });
  for (const turn of rows.turn ?? []) {
    const actions = rows.action?.filter(({ turn_id }) => turn_id === turn.id) ?? [];
    const observations = rows.obs?.filter(({ turn_id }) => turn_id === turn.id) ?? [];
    await writer.append(toStep(turn, actions, observations));
  }
}

function toStep(turn: Row, actions: readonly Row[], observations: readonly Row[]): StepInit {
  const rowsKept = (table: string, rows: readonly Row[]) =>
    rows.map((row) => keep(table, row, KEPT[table] ?? [])[table] ?? {});
  const said = turn.model_response;
  return {
    stepNumber: BigInt(numberOf(turn.turn)),
    actions: [
      ...(typeof said === 'string' ? [{ type: 'text', content: { text: said } }] : []),
      ...actions.map(toAction),
    ],
    observations: observations.flatMap(toObservations),
    reward: typeof turn.reward === 'number' ? turn.reward : undefined,
    terminated: turn.episode_done === true,
    metrics: metricsOf(turn, ['turn_time']),
    infoJson: textOf(turn.metrics_json),
    metadata: {
      ...keep('turn', turn, KEPT.turn ?? []),
      action: rowsKept('action', actions),
      obs: rowsKept('obs', observations).map((row, i) => ({
        ...row,
        observations: toObservations(observations[i] ?? {}).length,
      })),
    },
    startTime: timeOf(turn.start_time),
    endTime: timeOf(turn.end_time),
  };
}

function toAction(row: Row): ActionInit {
  return {
    type: textOf(row.action_type),
    name: textOf(row.tool_name),
    content: { json: textOf(row.tool_args) },
    tokenIds: JSON.parse(textOf(row.tokens)) as number[],
    logprobs: JSON.parse(textOf(row.logprobs)) as number[],
  };
}

/** One for each content of the row; without content, one with only a type. */
function toObservations(row: Row): ObservationInit[] {
  const type = textOf(row.obs_type);
  const contents = contentsOf(row).map(([column, form]) => ({ [form]: textOf(row[column]) }));
  return contents.length === 0 ? [{ type }] : contents.map((content) => ({ type, content }));
}

function contentsOf(row: Row) {
  return Object.entries(CONTENTS).filter(([column]) => typeof row[column] === 'string');
}

/** Without a trajectory there were no turns. */
export async function giveBackTurns(client: AnabranchClient, trajectoryId: string) {
  const rows = { data: null as string | null, turn: [] as Row[], action: [] as Row[], obs: [] as Row[] };
  if (trajectoryId === '') return rows;
  for await (const { step } of readSteps(client, { trajectoryId })) {
    if (step.stepNumber === 0n) {
      const collected = { trajectoryId, stepNumber: 0n, name: 'trajectory_data' };
      if (step.states.some(({ name }) => name === collected.name))
        rows.data = new TextDecoder().decode(await downloadState(client, collected));
      continue;
    }
    const turn: Row = fromStep(step);
    const kept = JSON.parse(step.metadataJson) as { action: Row[]; obs: Row[] };
    const belongs = { turn_id: turn.id ?? null };
    const calls = step.actions.slice(step.actions.length - kept.action.length);
    rows.turn.push(turn);
    rows.action.push(...calls.map((action, i) => ({ ...fromAction(action), ...kept.action[i], ...belongs })));
    const left = [...step.observations];
    for (const { observations, ...row } of kept.obs) {
      rows.obs.push({ ...fromObservations(left.splice(0, numberOf(observations))), ...row, ...belongs });
    }
  }
  return rows;
}

function fromStep(step: Step): Row {
  return {
    turn: Number(step.stepNumber),
    start_time: fromTime(step.startTime),
    end_time: fromTime(step.endTime),
    turn_time: step.metrics.turn_time ?? null,
    reward: step.reward ?? null,
    episode_done: step.terminated,
    metrics_json: step.infoJson,
    model_response: step.actions.find(({ type }) => type === 'text')?.content?.text ?? null,
    ...keptOf('turn', step.metadataJson),
  };
}

function fromAction(action: Action): Row {
  return {
    action_type: action.type,
    tool_name: action.name,
    tool_args: action.content?.json ?? null,
    tokens: JSON.stringify(action.tokenIds),
    logprobs: JSON.stringify(action.logprobs),
    num_tokens: action.tokenIds.length,
  };
}

/** As many observations as the row had contents. */
function fromObservations(observations: readonly Observation[]): Row {
  const contents = observations.map(({ content }) => content);
  const columns = Object.entries(CONTENTS).map(([column, form]): [string, string | null] => {
    const text = contents.map((content) => content?.[form]).find((each) => each !== undefined);
    return [column, text ?? null];
  });
  return { obs_type: observations[0]?.type ?? null, ...Object.fromEntries(columns) };
}
