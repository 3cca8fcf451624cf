/** Imports rows of simulator-state-db as described in docs/coming-from.md, and exports them again. */
import { create } from '@bufbuild/protobuf';
import type { Experiment, Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AnabranchClient,
  downloadState,
  type OwnedStep,
  openWriter,
  readSteps,
} from '../../../src/client/index.ts';
import {
  fromJson,
  fromStatus,
  fromTime,
  jsonOf,
  keep,
  keptOf,
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
  simulations: ['max_steps', 'seed', 'tags', 'created_at', 'updated_at'],
  simulation_runs: ['created_at', 'started_at', 'completed_at', 'extra_metadata'],
  states: ['id', 'extra_metadata'],
  run_state_sequence: ['id', 'created_at'],
};

/** Imports one simulation with all that belongs to it. Runs come before their branches. */
export async function takeOverSimulation(client: AnabranchClient, rows: Rows): Promise<string> {
  const [simulation = {}] = rows.simulations ?? [];
  await client.runs.createExperiment(toExperiment(simulation));
  for (const run of rows.simulation_runs ?? []) await takeOverRun(client, rows, run);
  return textOf(simulation.id);
}

function toExperiment(row: Row) {
  const { max_steps, seed, tags = null } = row;
  const words = Array.isArray(tags) && tags.every((tag) => typeof tag === 'string') ? tags : undefined;
  const fits: Row = { max_steps: isWhole(max_steps), seed: isWhole(seed), tags: words !== undefined || tags === null };
  const kept = KEPT.simulations?.filter((column) => fits[column] !== true) ?? [];
  return {
    experimentId: textOf(row.id),
    name: textOf(row.name),
    description: textOf(row.description),
    environmentName: textOf(row.environment_name),
    environmentConfigJson: jsonOf(row.environment_config),
    agentType: textOf(row.agent_type),
    agentConfigJson: jsonOf(row.agent_config),
    defaultConfigJson: isObject(row.agent_config) ? jsonOf(row.agent_config) : '',
    ...(isWhole(max_steps) ? { maxSteps: BigInt(max_steps) } : {}),
    ...(isWhole(seed) ? { seed: BigInt(seed) } : {}),
    tags: words ?? [],
    metadataJson: JSON.stringify(keep('simulations', row, kept)),
  };
}

async function takeOverRun(client: AnabranchClient, rows: Rows, row: Row): Promise<void> {
  const runId = textOf(row.id);
  const path = (rows.run_state_sequence ?? []).filter(({ run_id }) => run_id === runId);
  const steps = path.map((sequence) => toStep(sequence, rows.states?.find(({ id }) => id === sequence.state_id) ?? {}));
  const trajectoryId = await makeRun(client, rows, row, steps);
  const writer = await openWriter(client, { trajectoryId });
  for (const step of steps.filter(({ stepNumber }) => stepNumber !== 0n)) await writer.append(step);
  await writer.close();
  const status = statusOf(row.status);
  if (status === Status.PAUSED) await client.runs.pauseRun({ runId });
  if (status === Status.COMPLETED) await client.runs.completeRun({ runId, resultJson: jsonOf(row.total_reward) });
  if (status === Status.FAILED) await client.runs.failRun({ runId });
}

/** Returns the id of its main trajectory. */
async function makeRun(client: AnabranchClient, rows: Rows, row: Row, [root]: readonly Step[]): Promise<string> {
  const named = {
    name: textOf(row.name),
    description: textOf(row.description),
    metadataJson: JSON.stringify(keep('simulation_runs', row, KEPT.simulation_runs ?? [])),
    initialStatus: Status.RUNNING,
  };
  if (row.parent_run_id === null) {
    const { mainTrajectory } = await client.runs.createRun({
      ...named,
      runId: textOf(row.id),
      experimentId: textOf(row.simulation_id),
      configJson: jsonOf(row.config_overrides),
      mainTrajectory: { ...(root === undefined ? {} : { root }) },
    });
    return mainTrajectory?.id ?? '';
  }
  const branchPoint = rows.states?.find(({ id }) => id === row.branch_point_state_id);
  const { mainTrajectory } = await client.runs.branchRun({
    ...named,
    runId: textOf(row.parent_run_id),
    stepNumber: BigInt(numberOf(branchPoint?.step_number)),
    branchId: textOf(row.id),
    configOverridesJson: jsonOf(row.config_overrides),
  });
  return mainTrajectory?.id ?? '';
}

function toStep(sequence: Row, state: Row): Step {
  const { env_state, ...info } = isObject(state.info) ? state.info : {};
  const kept = {
    ...keep('states', state, KEPT.states ?? []),
    ...keep('run_state_sequence', sequence, KEPT.run_state_sequence ?? []),
  };
  const step = create(StepSchema, {
    stepNumber: BigInt(numberOf(sequence.sequence_order)),
    actions: state.action === null ? [] : [{ content: { json: jsonOf(state.action) } }],
    observations: [{ content: { json: jsonOf(state.observation) } }],
    terminated: state.done === true,
    truncated: state.truncated === true,
    infoJson: state.info === null ? '' : JSON.stringify(info),
    metadataJson: JSON.stringify(kept),
    states: env_state === undefined ? [] : [{ name: 'env', data: new TextEncoder().encode(jsonOf(env_state)) }],
  });
  if (typeof state.reward === 'number') step.reward = state.reward;
  step.endTime = timeOf(state.created_at);
  return step;
}

/** Rows in the order of the import. */
export async function giveBackSimulation(client: AnabranchClient, experimentId: string): Promise<Rows> {
  const { experiment } = await client.runs.getExperiment({ experimentId });
  if (experiment === undefined) throw new Error(`no experiment ${experimentId}`);
  const { runs } = await client.runs.listRuns({ experimentId, view: View.FULL });
  const paths = new Map<string, Path>();
  const rows = { simulation_runs: [] as Row[], states: [] as Row[], run_state_sequence: [] as Row[] };
  for (const { run } of runs.toReversed()) {
    if (run === undefined) continue;
    const path = await readPath(client, run);
    paths.set(run.id, path);
    rows.simulation_runs.push(fromRun(run, path));
    rows.states.push(...path.own.map(({ state }) => state));
    rows.run_state_sequence.push(...path.own.map(({ sequence }) => sequence));
  }
  return { simulations: [fromExperiment(experiment)], ...rows };
}

function fromExperiment(experiment: Experiment): Row {
  const { tags, maxSteps, seed } = experiment;
  return {
    id: experiment.id,
    name: experiment.name,
    description: nullable(experiment.description),
    environment_name: experiment.environmentName,
    environment_config: fromJson(experiment.environmentConfigJson),
    agent_type: experiment.agentType,
    agent_config: fromJson(experiment.agentConfigJson),
    max_steps: maxSteps === undefined ? null : Number(maxSteps),
    seed: seed === undefined ? null : Number(seed),
    tags: tags.length === 0 ? null : tags,
    ...keptOf('simulations', experiment.metadataJson),
  };
}

interface Path {
  /** Ids of states by step number, including shared ones. */
  readonly stateIds: readonly Value[];
  readonly own: readonly { readonly state: Row; readonly sequence: Row }[];
}

async function readPath(client: AnabranchClient, run: Run): Promise<Path> {
  const path = { stateIds: [] as Value[], own: [] as Path['own'][number][] };
  for await (const owned of readSteps(client, { trajectoryId: run.mainTrajectoryId })) {
    const parent = path.stateIds.at(-1) ?? null;
    const state: Row = { ...(await fromStep(client, owned)), parent_state_id: parent };
    path.stateIds.push(state.id ?? null);
    if (owned.trajectoryId !== run.mainTrajectoryId) continue;
    const kept = keptOf('run_state_sequence', owned.step.metadataJson);
    const order = Number(owned.step.stepNumber);
    path.own.push({ state, sequence: { ...kept, run_id: run.id, state_id: state.id ?? null, sequence_order: order } });
  }
  return path;
}

async function fromStep(client: AnabranchClient, { trajectoryId, step }: OwnedStep): Promise<Row> {
  const info = fromJson(step.infoJson);
  const [env] = step.states;
  const reference = { trajectoryId, stepNumber: step.stepNumber };
  const state = env === undefined ? undefined : new TextDecoder().decode(await downloadState(client, reference));
  return {
    observation: fromJson(step.observations[0]?.content?.json ?? ''),
    action: fromJson(step.actions[0]?.content?.json ?? ''),
    reward: step.reward ?? null,
    done: step.terminated,
    truncated: step.truncated,
    step_number: Number(step.stepNumber),
    info: isObject(info) && state !== undefined ? { ...info, env_state: fromJson(state) } : info,
    created_at: fromTime(step.endTime),
    ...keptOf('states', step.metadataJson),
  };
}

function fromRun(run: Run, { stateIds }: Path): Row {
  const start = run.branchPoint ?? 0n;
  return {
    id: run.id,
    simulation_id: run.experimentId,
    name: run.name,
    description: nullable(run.description),
    root_state_id: stateIds[Number(start)] ?? null,
    current_state_id: stateIds.at(-1) ?? null,
    parent_run_id: nullable(run.parentId),
    branch_point_state_id: run.branchPoint === undefined ? null : (stateIds[Number(start)] ?? null),
    config_overrides: fromJson(run.configOverridesJson),
    status: fromStatus(run.status, 'active'),
    total_steps: Number((run.nextStepNumber ?? 0n) - 1n - start),
    total_reward: fromJson(run.resultJson),
    ...keptOf('simulation_runs', run.metadataJson),
  };
}

function isWhole(value: Value | undefined): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value);
}

function isObject(value: Value | undefined): value is { readonly [key: string]: Value } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
