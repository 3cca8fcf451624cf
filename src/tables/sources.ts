import {
  create,
  type DescField,
  type DescMessage,
  type JsonObject,
  type MessageInitShape,
  type MessageShape,
  ScalarType,
  toJson,
} from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { type Rollout, RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { ListRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  type Step,
  StepSchema,
  type Trajectory,
  TrajectorySchema,
  View,
} from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, readTrajectoryParts, type TrajectoryReadOptions } from '../client/index.ts';
import { type Cell, type Column, type ColumnType, TableError } from './column.ts';
import { actionJson, observationJson } from './turns.ts';

const JSON_TEXT = /_json$/;
const WHOLE = new Set([
  ScalarType.INT32,
  ScalarType.INT64,
  ScalarType.UINT32,
  ScalarType.UINT64,
  ScalarType.SINT32,
  ScalarType.SINT64,
]);

/** What a row of steps is made of. */
interface StepOfTrajectory {
  readonly trajectory: Trajectory;
  /** Id of the trajectory that owns the step. */
  readonly ownerId: string;
  readonly step: Step;
}

/** The columns that tables of the Python package also have, first and in its order. */
const FIRST = [
  'trajectory_id',
  'step',
  'is_first',
  'is_last',
  'is_terminal',
  'truncated',
  'action',
  'observation',
  'reward',
  'info',
];

const ADDED: readonly Column<StepOfTrajectory>[] = [
  { name: 'trajectory_id', type: 'text', read: ({ trajectory }) => trajectory.id },
  { name: 'is_first', type: 'boolean', read: ({ step }) => step.stepNumber === 0n },
  {
    name: 'is_last',
    type: 'boolean',
    read: ({ trajectory, step }) => step.stepNumber === trajectory.nextStepNumber - 1n,
  },
  { name: 'action', type: 'json', read: ({ step }) => actionJson(step) },
  { name: 'observation', type: 'json', read: ({ step }) => observationJson(step) },
  { name: 'owner_id', type: 'text', read: ({ ownerId }) => ownerId },
];

const OF_STEP: readonly Column<StepOfTrajectory>[] = messageColumns(StepSchema, {
  step_number: 'step',
  terminated: 'is_terminal',
}).map((column) => ({ ...column, read: ({ step }) => column.read(step) }));

const UNORDERED = [...ADDED, ...OF_STEP];

/** The columns of steps: every field of the step, and flags that align actions with observations. */
export const STEP_COLUMNS = [
  ...FIRST.flatMap((name) => UNORDERED.filter((column) => column.name === name)),
  ...UNORDERED.filter(({ name }) => !FIRST.includes(name)),
];

/** Columns whose values the BASIC view of steps leaves out. */
export const LARGE_STEP_COLUMNS: readonly string[] = [
  'action',
  'observation',
  'actions',
  'observations',
  'info',
  'metadata',
];

export const TRAJECTORY_COLUMNS = messageColumns(TrajectorySchema, { id: 'trajectory_id' });
export const ROLLOUT_COLUMNS = messageColumns(RolloutSchema, { id: 'rollout_id' });

/**
 * Returns a column for each field of a message, so that a table has every field. Fields of JSON text lose `_json` in
 * their names. Lists, maps and messages become JSON in the form of the API; statuses small words; durations seconds.
 * Empty text, lists and maps, and what is unset, is null.
 */
function messageColumns<Desc extends DescMessage>(
  schema: Desc,
  renamed: Readonly<Record<string, string>> = {},
): Column<MessageShape<Desc>>[] {
  return schema.fields.map((field) => ({
    name: renamed[field.name] ?? field.name.replace(JSON_TEXT, ''),
    type: typeOf(field),
    read: readerOf(schema, field),
  }));
}

function typeOf(field: DescField): ColumnType {
  if (field.fieldKind === 'enum') return 'text';
  if (field.fieldKind === 'message' && field.message.typeName === TimestampSchema.typeName) return 'time';
  if (field.fieldKind === 'message' && field.message.typeName === DurationSchema.typeName) return 'number';
  if (field.fieldKind !== 'scalar') return 'json';
  if (WHOLE.has(field.scalar)) return 'integer';
  if (field.scalar === ScalarType.BOOL) return 'boolean';
  if (field.scalar === ScalarType.STRING) return JSON_TEXT.test(field.name) ? 'json' : 'text';
  if (field.scalar === ScalarType.DOUBLE || field.scalar === ScalarType.FLOAT) return 'number';
  throw new Error(`no table has the type of ${field.name}`);
}

function readerOf<Desc extends DescMessage>(schema: Desc, field: DescField): (message: MessageShape<Desc>) => Cell {
  const type = typeOf(field);
  const fieldOf = (message: MessageShape<Desc>) => (message as Record<string, unknown>)[field.localName];
  if (type === 'json' && field.fieldKind !== 'scalar') {
    return (message) => {
      if (!reflect(schema, message).isSet(field)) return null;
      const alone = create(schema, { [field.localName]: fieldOf(message) } as never);
      return JSON.stringify((toJson(schema, alone) as JsonObject)[field.jsonName]);
    };
  }
  return (message) => {
    const value = fieldOf(message);
    if (value === undefined || value === '') return null;
    if (type === 'integer') return BigInt(value as number);
    if (field.fieldKind === 'enum') return wordOf(field.enum.value[value as number]?.name, field.enum.sharedPrefix);
    if (type === 'number' && field.fieldKind === 'message') return secondsOf(value as Duration);
    return value as string | number | boolean | Timestamp;
  };
}

/** Returns `completed` for STATUS_COMPLETED, and null for an unspecified value. */
function wordOf(name = '', prefix = ''): string | null {
  const word = name.toLowerCase().slice(prefix.length);
  return word === '' || word === 'unspecified' ? null : word;
}

function secondsOf({ seconds, nanos }: Duration): number {
  return Number(seconds) + nanos / 1e9;
}

const PAGE_SIZE = 1000;

/** Reads the steps of the trajectories that match a filter. Errors: TableError if a trajectory cannot be read whole. */
export async function* readStepRows(
  client: AnabranchClient,
  options: TrajectoryReadOptions,
): AsyncGenerator<StepOfTrajectory, void, undefined> {
  for await (const { trajectory, ownerId, steps, deleted, error } of readTrajectoryParts(client, options)) {
    for (const step of steps) yield { trajectory, ownerId, step };
    if (deleted) throw new TableError(`Trajectory ${trajectory.id} was deleted meanwhile. Run the command again.`);
    if (error !== undefined) {
      throw new TableError(`Trajectory ${trajectory.id} cannot be read whole: ${error.message}`);
    }
  }
}

/** Reads the trajectories that match a filter, without steps. */
export async function* readTrajectoryRows(
  client: AnabranchClient,
  options: TrajectoryReadOptions,
): AsyncGenerator<Trajectory, void, undefined> {
  const request = { ...options, steps: StepScope.NONE };
  for await (const { trajectory, done } of readTrajectoryParts(client, request)) if (done) yield trajectory;
}

type RolloutFilter = Omit<
  MessageInitShape<typeof ListRolloutsRequestSchema>,
  '$typeName' | '$unknown' | 'pageSize' | 'pageToken'
>;

/** Reads the rollouts of runs that match a filter, run by run. */
export async function* readRolloutRows(
  client: AnabranchClient,
  runIds: AsyncIterable<string>,
  { signal, ...filter }: RolloutFilter & { readonly signal: AbortSignal },
): AsyncGenerator<Rollout, void, undefined> {
  for await (const runId of runIds) {
    for (let pageToken = ''; ; ) {
      const request = { view: View.FULL, ...filter, runId, pageSize: PAGE_SIZE, pageToken };
      const page = await client.rollouts.listRollouts(request, { signal });
      yield* page.rollouts;
      pageToken = page.nextPageToken;
      if (pageToken === '') break;
    }
  }
}

/** Reads the ids of the runs of an experiment; of all runs if its id is empty. */
export async function* readRunIds(
  client: AnabranchClient,
  experimentId: string,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  for (let pageToken = ''; ; ) {
    const request = { experimentId, pageSize: PAGE_SIZE, pageToken };
    const page = await client.runs.listRuns(request, { signal });
    for (const { run } of page.runs) if (run !== undefined) yield run.id;
    pageToken = page.nextPageToken;
    if (pageToken === '') return;
  }
}
