/** Reads the result of an import: steps by path, and rows in the form of the source. */
import type { Content, Step, Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, downloadState, readSteps } from '../../src/client/index.ts';

export async function trajectoriesOf(client: AnabranchClient, experimentName: string): Promise<Trajectory[]> {
  const { experiment } = await client.runs.getExperiment({ name: experimentName });
  const { trajectories } = await client.trajectories.listTrajectories({
    experimentId: experiment?.id ?? '',
    pageSize: 1000,
  });
  return trajectories;
}

/** By name of the trajectory, the ids of the programs on its path. */
export async function pathsOf(client: AnabranchClient, experimentName: string): Promise<Record<string, number[]>> {
  const paths: Record<string, number[]> = {};
  for (const { id, name } of await trajectoriesOf(client, experimentName)) {
    const steps = await stepsOf(client, id);
    if (steps[0]?.metrics.program_id !== undefined) throw new Error(`step 0 of "${name}" is a program`);
    paths[name] = steps.slice(1).map(({ metrics }) => metrics.program_id ?? Number.NaN);
  }
  return paths;
}

/** All programs of an experiment, each as often as it is stored. */
export async function programsOf(client: AnabranchClient, experimentName: string): Promise<Step[]> {
  const { experiment } = await client.runs.getExperiment({ name: experimentName });
  const { steps } = await client.trajectories.listSteps({
    experimentId: experiment?.id ?? '',
    pageSize: 1000,
  });
  const programs = steps.flatMap(({ step }) => (step?.metrics.program_id === undefined ? [] : [step]));
  return programs.toSorted((one, other) => idOf(one) - idOf(other));
}

export async function stepsOf(client: AnabranchClient, trajectoryId: string): Promise<Step[]> {
  const steps: Step[] = [];
  for await (const { step } of readSteps(client, { trajectoryId })) steps.push(step);
  return steps;
}

function idOf(step: Step): number {
  return step.metrics.program_id ?? Number.NaN;
}

interface Cell {
  readonly type: string;
  readonly value: null | bigint | number | Uint8Array;
}

/** The source row of a step, computed from the step and its states only. */
export async function rowOf(client: AnabranchClient, trajectoryId: string, step: Step): Promise<Map<string, Cell>> {
  const { programs, types } = JSON.parse(step.metadataJson) as {
    readonly programs: Readonly<Record<string, unknown>>;
    readonly types: Readonly<Record<string, string>>;
  };
  const states = new Set(step.states.map(({ name }) => name));
  const row = new Map<string, Cell>();
  for (const [column, type] of Object.entries(types)) {
    row.set(column, { type, value: await cellValue(column, type) });
  }
  return row;

  async function cellValue(column: string, type: string): Promise<Cell['value']> {
    if (type === 'null') return null;
    if (column in programs) return fromJson(type, programs[column]);
    if (column === 'code') return contentBytes(client, step.actions[0]?.content);
    if (column === 'response') return contentBytes(client, step.observations[0]?.content);
    const name = { state_json: 'env', conversation_json: 'agent' }[column] ?? column;
    if (states.has(name)) return downloadState(client, { trajectoryId, stepNumber: step.stepNumber, name });
    if (column === 'meta') return new TextEncoder().encode(step.infoJson);
    throw new Error(`column ${column} was not found`);
  }
}

async function contentBytes(client: AnabranchClient, content: Content | undefined): Promise<Uint8Array> {
  if (content?.stateDigest !== undefined) return downloadState(client, content.stateDigest);
  return content?.data ?? new TextEncoder().encode(content?.text);
}

function fromJson(type: string, json: unknown): Cell['value'] {
  if (json === null) return null;
  if (['integer', 'bigint', 'smallint'].includes(type)) return BigInt(json as number | string);
  if (['real', 'double precision'].includes(type)) return Number(json);
  if (typeof json === 'string') return new TextEncoder().encode(json);
  return new Uint8Array(Buffer.from((json as { base64: string }).base64, 'base64'));
}
