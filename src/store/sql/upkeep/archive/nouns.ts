import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from '../../kit/tables/attempts.ts';
import { STATUS_CHANGES } from '../../kit/tables/changes.ts';
import { GROUPS, ROLLOUT_CANCELLATIONS, ROLLOUT_ENVIRONMENTS, ROLLOUTS } from '../../kit/tables/rollouts.ts';
import { ENVIRONMENTS, EXPERIMENTS, RUNS, STAGES } from '../../kit/tables/runs.ts';
import type { NamedColumn, Table } from '../../kit/tables/table.ts';
import { TASKS, VALIDATORS } from '../../kit/tables/tasks.ts';
import { TAGS, TRAJECTORIES } from '../../kit/tables/trajectories.ts';

/** Tables whose rows have ids, so that records can refer to them. */
export type Target =
  | 'experiments'
  | 'runs'
  | 'stages'
  | 'tasks'
  | 'validators'
  | 'groups'
  | 'rollouts'
  | 'environments';

/** How the rows of a table are written to archives: row keys become ids, all other columns stay what they are. */
export interface Noun {
  readonly table: Table;
  /** Columns with row keys, and what they refer to. 0 and null refer to nothing. */
  readonly keys: Readonly<Record<string, Target>>;
  /** Columns with the key of a tree and of a trajectory in it. The record has the id under the second name. */
  readonly trajectory?: readonly [tree: string, key: string];
  /** Columns that are not part of the record: the importer sets them. */
  readonly set: readonly string[];
}

function noun(table: Table, set: readonly string[], keys: Noun['keys'] = {}, trajectory?: Noun['trajectory']): Noun {
  return { table, keys, set, ...(trajectory === undefined ? {} : { trajectory }) };
}

/** Columns of a row with an own key. */
const OWN = ['key', 'namespace'] as const;
const OF_ENTITY = ['tree', 'entity_kind', 'entity', 'namespace'] as const;
const OF_ROLLOUT = ['rollout', 'namespace'] as const;
const PLACE = ['tree', 'trajectory'] as const;

/**
 * The tables whose rows are records. docs/archive.md lists what happens to every other table. A test compares both
 * with the schema.
 */
export const NOUNS = {
  task: noun(TASKS, OWN),
  validator: noun(VALIDATORS, OWN, { task: 'tasks' }),
  experiment: noun(EXPERIMENTS, [...OWN, 'hidden']),
  run: noun(RUNS, [...OWN, 'hidden', 'mark', 'main_tree', 'main_trajectory'], {
    experiment: 'experiments',
    tree: 'runs',
    parent: 'runs',
  }),
  stage: noun(STAGES, [...OWN, 'mark'], { run: 'runs' }),
  environment: noun(ENVIRONMENTS, OWN, { run: 'runs' }),
  cancellation: noun(ROLLOUT_CANCELLATIONS, ['namespace'], { run: 'runs', stage: 'stages' }),
  group: noun(GROUPS, [...OWN, 'mark'], { run: 'runs', stage: 'stages' }),
  rollout: noun(
    ROLLOUTS,
    [...OWN, 'mark'],
    { run: 'runs', stage: 'stages', group_key: 'groups', task: 'tasks' },
    PLACE,
  ),
  attempt: noun(ATTEMPTS, OF_ROLLOUT, {}, PLACE),
  validation: noun(VALIDATIONS, OF_ROLLOUT, { validator: 'validators' }),
  override: noun(VALIDATION_OVERRIDES, OF_ROLLOUT),
  rollout_environment: noun(ROLLOUT_ENVIRONMENTS, OF_ROLLOUT, { environment: 'environments' }),
  status_change: noun(STATUS_CHANGES, OF_ENTITY),
  tag: noun(TAGS, ['tree', 'trajectory', 'namespace']),
  trajectory: noun(
    TRAJECTORIES,
    [
      ...OWN,
      ...['tree', 'uid', 'parent', 'hidden', 'purging', 'trimming', 'depth', 'merged_to', 'named_to'],
      // Computed from the steps.
      ...['reward_sum', 'byte_sum', 'branch_reward_sum', 'timed_turns', 'turn_seconds', 'min_reward', 'max_reward'],
    ],
    { run: 'runs', experiment: 'experiments' },
  ),
} satisfies Readonly<Record<string, Noun>>;

export type NounName = keyof typeof NOUNS;

/** Records whose rows have ids, with the table and the entity of their history. */
export const WITH_ID = {
  task: { target: 'tasks', history: undefined },
  validator: { target: 'validators', history: undefined },
  experiment: { target: 'experiments', history: undefined },
  run: { target: 'runs', history: 'RUN' },
  stage: { target: 'stages', history: 'STAGE' },
  environment: { target: 'environments', history: 'ENVIRONMENT' },
  group: { target: 'groups', history: undefined },
  rollout: { target: 'rollouts', history: 'ROLLOUT' },
} as const satisfies Partial<Record<NounName, { target: Target; history: string | undefined }>>;

export type WithId = keyof typeof WITH_ID;

/** Kinds of records that are stored many at once. */
export const ROW_KINDS: ReadonlySet<string> = new Set([
  ...Object.keys(WITH_ID),
  ...['cancellation', 'metric_points', 'main_trajectory', 'deleted_trajectory', 'more'],
]);

/** A column whose values records have as they are. */
export interface PlainColumn extends NamedColumn {
  readonly nullable: boolean;
}

/** Returns the columns whose values a record has as they are. */
export function plainColumns({ table, keys, trajectory = ['', ''], set }: Noun): PlainColumn[] {
  const others = new Set([...Object.keys(keys), ...trajectory, ...set]);
  const columns = table.order.filter(({ name }) => !others.has(name));
  return columns.map((column) => ({ ...column, nullable: table.columns[column.name]!.nullable }));
}
