import { RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { type Step, StepSchema, type Trajectory, TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Column } from './column.ts';
import { messageColumns } from './message_columns.ts';
import { itemsJson } from './value_json.ts';

/** What a row of steps is made of. */
export interface StepOfTrajectory {
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
  { name: 'action', type: 'json', read: ({ step }) => itemsJson(step.actions) },
  { name: 'observation', type: 'json', read: ({ step }) => itemsJson(step.observations) },
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
