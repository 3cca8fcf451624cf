import { LIMITS } from './limits.ts';

/**
 * The closed catalogue of reasons: the names of `ErrorReason` in error.proto without prefix. A test keeps both equal.
 */
export const REASONS = [
  'INVALID_REQUEST',
  'INVALID_PAGE_TOKEN',
  'MESSAGE_TOO_LARGE',
  'TRAJECTORY_NOT_FOUND',
  'STEP_NOT_FOUND',
  'CHECKPOINT_NOT_FOUND',
  'TAG_NOT_FOUND',
  'STATE_NOT_FOUND',
  'TRAJECTORY_EXISTS',
  'REQUEST_ID_REUSED',
  'UNEXPECTED_POSITION',
  'WRITER_FENCED',
  'STEP_CONFLICT',
  'STEP_GAP',
  'TRAJECTORY_SEALED',
  'STATE_CONFLICT',
  'BRANCH_POINT_BEYOND_END',
  'HAS_BRANCHES',
  'TRAJECTORY_DELETED',
  'RANGE_BEYOND_END',
  'TAG_MOVED',
  'DIGEST_MISMATCH',
  'STATE_CORRUPT',
  'STORAGE_FULL',
  'DATABASE_UNAVAILABLE',
  'SERVER_DRAINING',
  'SLOW_READER',
  'UNIMPLEMENTED',
  'CANCELLED',
  'DEADLINE_EXCEEDED',
  'INTERNAL',
  'EXPERIMENT_NOT_FOUND',
  'RUN_NOT_FOUND',
  'STAGE_NOT_FOUND',
  'EXPERIMENT_EXISTS',
  'RUN_EXISTS',
  'CONFIG_MISMATCH',
  'NO_MAIN_TRAJECTORY',
  'ILLEGAL_TRANSITION',
  'RESULT_CONFLICT',
  'RUN_DELETED',
  'TASK_NOT_FOUND',
  'GROUP_NOT_FOUND',
  'ROLLOUT_NOT_FOUND',
  'ENVIRONMENT_NOT_FOUND',
  'ROLLOUT_EXISTS',
  'ENVIRONMENT_EXISTS',
  'LEASE_LOST',
  'RUN_ACTIVE',
  'MESSAGE_TIMEOUT',
  'BRANCH_TOO_DEEP',
  'TOO_MANY_CONNECTIONS',
  'NO_ATTEMPT',
  'ROLLOUT_CONFLICT',
  'QUEUE_CLOSED',
  'STEP_CORRUPT',
  'STAGE_NOT_CLAIMABLE',
  'CLAIMS_TOO_LARGE',
  'STATE_PRUNED',
  'RETENTION_POLICY_NOT_FOUND',
  'SQLITE_ONLY',
  'ARCHIVE_INVALID',
  'IMPORT_CONFLICT',
  'IMPORT_SUPERSEDED',
  'STORAGE_LOST',
  'DATABASE_READ_ONLY',
  'BACKUP_IN_PROGRESS',
  'MEMORY_FULL',
  'UNAUTHENTICATED',
  'PERMISSION_DENIED',
  'API_KEY_NOT_FOUND',
  'CALLER_LIMIT',
] as const;

export type Reason = (typeof REASONS)[number];

/** An invalid field: its path (`steps[3].info_json`) and what was expected. */
export interface Violation {
  readonly field: string;
  readonly description: string;
}

export interface ErrorDetails {
  /** Values that a program needs to continue. error.proto lists the keys of each reason. */
  readonly metadata?: Readonly<Record<string, string>>;
  readonly violations?: readonly Violation[];
  /** Number of further violations that are not listed. */
  readonly unlistedViolations?: number;
  /** For the log only; never sent to callers. */
  readonly cause?: unknown;
}

/**
 * The only error whose message is sent to callers. The message is for people. Any other error is reported as INTERNAL
 * without text.
 */
export class AnabranchError extends Error {
  override readonly name = 'AnabranchError';
  readonly reason: Reason;
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly Violation[];
  readonly unlistedViolations: number;

  constructor(reason: Reason, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.reason = reason;
    this.metadata = details.metadata ?? {};
    this.violations = details.violations ?? [];
    this.unlistedViolations = details.unlistedViolations ?? 0;
  }
}

/** Whether the database rejects writes. The store logs when that begins and when it ends; its users do not. */
export function isReadOnly(error: unknown): boolean {
  return error instanceof AnabranchError && error.reason === 'DATABASE_READ_ONLY';
}

/** Returns the error for a request with one invalid field. */
export function invalidField(field: string, description: string): AnabranchError {
  return new AnabranchError('INVALID_REQUEST', `${field}: ${description}`, { violations: [{ field, description }] });
}

/** The error of streams and calls that began before the database was replaced (`Store.onReplaced`). */
export function databaseReplaced(remedy: string): AnabranchError {
  const message = 'The database was replaced, as by a failover, and may lack steps that were sent or acked before.';
  return new AnabranchError('DATABASE_UNAVAILABLE', `${message} ${remedy}`);
}

export function trajectoryNotFound(trajectoryId: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_NOT_FOUND',
    `Trajectory ${trajectoryId} does not exist: it was never created, was deleted, or its id was created again.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}

export function stepNotFound(trajectoryId: string, stepNumber: bigint, end: bigint): AnabranchError {
  return new AnabranchError(
    'STEP_NOT_FOUND',
    `Trajectory ${trajectoryId} has no step ${stepNumber}: it has ${end === 0n ? 'no steps yet' : `steps 0 to ${end - 1n}`}.`,
    { metadata: { trajectory_id: trajectoryId, step_number: `${stepNumber}`, next_step_number: `${end}` } },
  );
}

export function tagNotFound(trajectoryId: string, tag: string): AnabranchError {
  return new AnabranchError(
    'TAG_NOT_FOUND',
    `Trajectory ${trajectoryId} has no tag "${tag}". ListTags returns its tags.`,
    {
      metadata: { trajectory_id: trajectoryId, tag },
    },
  );
}

export function stateNotFound(digest: string): AnabranchError {
  return new AnabranchError(
    'STATE_NOT_FOUND',
    `No state is stored under the digest ${digest}: send its bytes inline, or put it first (PutState). States sent inline with less than ${LIMITS.smallStateBytes} bytes are read by reference (trajectory, step number and name) only.`,
    {
      metadata: { digest },
    },
  );
}

export function stateCorrupt(digest: string, cause?: unknown): AnabranchError {
  return new AnabranchError(
    'STATE_CORRUPT',
    `The stored bytes of state ${digest} do not match its digest: the storage is damaged. Restore the database from a backup.`,
    { metadata: { digest }, ...(cause === undefined ? {} : { cause }) },
  );
}

/** `named` is an id or a name. */
export function experimentNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'EXPERIMENT_NOT_FOUND',
    `Experiment "${named}" does not exist: it was never created, or was deleted. ListExperiments returns those that exist.`,
    { metadata: { experiment: named } },
  );
}

/** `named` is an id or a name. */
export function runNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'RUN_NOT_FOUND',
    `Run "${named}" does not exist: it was never created, or was deleted. ListRuns returns those that exist.`,
    { metadata: { run: named } },
  );
}

/** `runId` is the requested run. The stage may exist in another run. */
export function stageNotFound(named: string, runId?: string): AnabranchError {
  const missing = runId === undefined ? `Stage ${named} does not exist.` : `Run ${runId} has no stage ${named}.`;
  return new AnabranchError('STAGE_NOT_FOUND', `${missing} ListStages returns the stages of a run.`, {
    metadata: { stage: named },
  });
}

export function noMainTrajectory(runId: string): AnabranchError {
  return new AnabranchError(
    'NO_MAIN_TRAJECTORY',
    `Run ${runId} has no main trajectory to branch from: create one with CreateRun (main_trajectory), or branch one of its trajectories with BranchTrajectory.`,
    { metadata: { run_id: runId } },
  );
}

export function rolloutNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'ROLLOUT_NOT_FOUND',
    `Rollout ${id} does not exist: it was never created, or was deleted. ListRollouts returns the rollouts of a run.`,
    { metadata: { rollout: id } },
  );
}

/** `named` is an id, or a number within a stage. */
export function groupNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'GROUP_NOT_FOUND',
    `Group ${named} does not exist: it was never created, or was deleted. ListGroups returns the groups of a stage.`,
    { metadata: { group: named } },
  );
}

export function taskNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'TASK_NOT_FOUND',
    `Task "${id}" does not exist: create it first (UpsertTasks). ListTasks returns the tasks of the catalogue.`,
    { metadata: { task: id } },
  );
}

export function environmentNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'ENVIRONMENT_NOT_FOUND',
    `Environment ${id} does not exist: it was never created, or was deleted. ListEnvironments returns the environments of a run.`,
    { metadata: { environment: id } },
  );
}

export function retentionPolicyNotFound(name: string): AnabranchError {
  return new AnabranchError(
    'RETENTION_POLICY_NOT_FOUND',
    `Retention policy "${name}" does not exist: it was never set, or was deleted, also with its run or experiment. ListRetentionPolicies returns the stored policies.`,
    { metadata: { retention_policy: name } },
  );
}
