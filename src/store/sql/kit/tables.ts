import type { ColumnType } from 'kysely';
import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from './tables/attempts.ts';
import { REQUESTS, STATUS_CHANGES } from './tables/changes.ts';
import { API_KEYS, TOKEN_KEYS } from './tables/keys.ts';
import { JOB_LEASES, RETENTION_POLICIES } from './tables/retention.ts';
import { GROUPS, ROLLOUT_CANCELLATIONS, ROLLOUT_ENVIRONMENTS, ROLLOUTS, TASKS, VALIDATORS } from './tables/rollouts.ts';
import { ENVIRONMENTS, EXPERIMENTS, METRIC_POINTS, METRIC_SERIES, RUNS, STAGES } from './tables/runs.ts';
import { STATE_CHUNKS, STATE_UPLOADS, STATES } from './tables/states.ts';
import { ATTACHED_STATES, SEGMENT_NAMES, SEGMENTS, STATE_REFS, STEP_SCORES } from './tables/steps.ts';
import type { TypeOf } from './tables/table.ts';
import { DELETED_TRAJECTORIES, TAGS, TRAJECTORIES, TRAJECTORY_IMPORTS } from './tables/trajectories.ts';

/** The tables that both engines have. */
export const TABLES = {
  trajectories: TRAJECTORIES,
  deleted_trajectories: DELETED_TRAJECTORIES,
  trajectory_imports: TRAJECTORY_IMPORTS,
  segments: SEGMENTS,
  segment_names: SEGMENT_NAMES,
  state_refs: STATE_REFS,
  attached_states: ATTACHED_STATES,
  step_scores: STEP_SCORES,
  states: STATES,
  state_uploads: STATE_UPLOADS,
  state_chunks: STATE_CHUNKS,
  tags: TAGS,
  status_changes: STATUS_CHANGES,
  requests: REQUESTS,
  experiments: EXPERIMENTS,
  runs: RUNS,
  stages: STAGES,
  metric_series: METRIC_SERIES,
  metric_points: METRIC_POINTS,
  tasks: TASKS,
  validators: VALIDATORS,
  groups: GROUPS,
  rollouts: ROLLOUTS,
  attempts: ATTEMPTS,
  validations: VALIDATIONS,
  validation_overrides: VALIDATION_OVERRIDES,
  environments: ENVIRONMENTS,
  rollout_environments: ROLLOUT_ENVIRONMENTS,
  rollout_cancellations: ROLLOUT_CANCELLATIONS,
  retention_policies: RETENTION_POLICIES,
  job_leases: JOB_LEASES,
  api_keys: API_KEYS,
  token_keys: TOKEN_KEYS,
} as const;

type StoredTables = { [Name in keyof typeof TABLES]: TypeOf<(typeof TABLES)[Name]> };

/** The tables as Kysely knows them. */
export interface Tables extends StoredTables {
  /** A view of `segments`: a row for each step. */
  steps: StepsView;
  /** The migrations that ran, by the migrator. */
  kysely_migration: { name: string };
  /** SQLite only: the newest change mark. */
  change_marks: { mark: ColumnType<bigint, bigint | number, bigint | number> };
}

interface StepsView {
  tree: bigint;
  trajectory: bigint;
  step_number: bigint;
  namespace: string;
  reward: number | string | null;
  terminated: boolean | bigint;
  truncated: boolean | bigint;
  commit_time: string;
  first_step_number: bigint;
  next_step_number: bigint;
}

export type TrajectoriesTable = Tables['trajectories'];
export type StatusChangesTable = Tables['status_changes'];
export type RunsTable = Tables['runs'];
export type StagesTable = Tables['stages'];
export type TasksTable = Tables['tasks'];
export type ValidatorsTable = Tables['validators'];
export type GroupsTable = Tables['groups'];
export type RolloutsTable = Tables['rollouts'];
export type AttemptsTable = Tables['attempts'];
export type EnvironmentsTable = Tables['environments'];
