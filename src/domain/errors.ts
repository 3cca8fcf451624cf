/** The closed catalogue of reasons: the names of `ErrorReason` in error.proto, without prefix. A test holds both equal. */
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
  'VALIDATOR_NOT_FOUND',
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
] as const;

export type Reason = (typeof REASONS)[number];

/** A field that breaks its rule: its path (`steps[3].info_json`) and what was wanted. */
export interface Violation {
  readonly field: string;
  readonly description: string;
}

export interface ErrorDetails {
  /** What a program needs to go on; keys are listed per reason in error.proto. */
  readonly metadata?: Readonly<Record<string, string>>;
  readonly violations?: readonly Violation[];
  /** Number of violations that were found beyond those. */
  readonly unlistedViolations?: number;
  /** For the log only, never sent. */
  readonly cause?: unknown;
}

/** The only error that may reach a caller. Its message is for people; everything else that is thrown is answered INTERNAL without text. */
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

/** A request with one bad field. */
export function invalidField(field: string, description: string): AnabranchError {
  return new AnabranchError('INVALID_REQUEST', `${field}: ${description}`, { violations: [{ field, description }] });
}

export function trajectoryNotFound(trajectoryId: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_NOT_FOUND',
    `No trajectory ${trajectoryId} is here: it was never made, was deleted, or its id was made again since.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}

export function stepNotFound(trajectoryId: string, stepNumber: bigint, end: bigint): AnabranchError {
  return new AnabranchError(
    'STEP_NOT_FOUND',
    `Trajectory ${trajectoryId} has no step ${stepNumber}: it holds ${end === 0n ? 'none yet' : `steps 0 to ${end - 1n}`}.`,
    { metadata: { trajectory_id: trajectoryId, step_number: `${stepNumber}`, next_step_number: `${end}` } },
  );
}

export function tagNotFound(trajectoryId: string, tag: string): AnabranchError {
  return new AnabranchError(
    'TAG_NOT_FOUND',
    `Trajectory ${trajectoryId} has no tag "${tag}". ListTags shows its tags.`,
    {
      metadata: { trajectory_id: trajectoryId, tag },
    },
  );
}

export function stateNotFound(digest: string): AnabranchError {
  return new AnabranchError(
    'STATE_NOT_FOUND',
    `No state ${digest} is here: put it first (PutState), or send its bytes inline.`,
    {
      metadata: { digest },
    },
  );
}

/** `named` is an id or a name. */
export function experimentNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'EXPERIMENT_NOT_FOUND',
    `No experiment "${named}" is here: it was never made, or was deleted. ListExperiments shows those that are.`,
    { metadata: { experiment: named } },
  );
}

/** `named` is an id or a name. */
export function runNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'RUN_NOT_FOUND',
    `No run "${named}" is here: it was never made, or was deleted. ListRuns shows those that are.`,
    { metadata: { run: named } },
  );
}

/** With the run that it should be of, where it may well be of another. */
export function stageNotFound(named: string, runId?: string): AnabranchError {
  const there = runId === undefined ? `No stage ${named} is here.` : `Run ${runId} has no stage ${named}.`;
  return new AnabranchError('STAGE_NOT_FOUND', `${there} ListStages shows those of a run.`, {
    metadata: { stage: named },
  });
}

export function noMainTrajectory(runId: string): AnabranchError {
  return new AnabranchError(
    'NO_MAIN_TRAJECTORY',
    `Run ${runId} has no main trajectory to branch from: make one with CreateRun (main_trajectory), or branch one of its trajectories with BranchTrajectory.`,
    { metadata: { run_id: runId } },
  );
}

export function rolloutNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'ROLLOUT_NOT_FOUND',
    `No rollout ${id} is here: it was never made, or was deleted. ListRollouts shows those of a run.`,
    { metadata: { rollout: id } },
  );
}

/** `named` is an id, or a number in a stage. */
export function groupNotFound(named: string): AnabranchError {
  return new AnabranchError(
    'GROUP_NOT_FOUND',
    `No group ${named} is here: it was never made, or was deleted. ListGroups shows those of a stage.`,
    { metadata: { group: named } },
  );
}

export function taskNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'TASK_NOT_FOUND',
    `No task "${id}" is in the catalogue: make it first (UpsertTasks). ListTasks shows those that are.`,
    { metadata: { task: id } },
  );
}

export function validatorNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'VALIDATOR_NOT_FOUND',
    `validator_id ${id} is not the id of a validator. ListValidators returns the validators of a task.`,
    { metadata: { validator: id } },
  );
}

export function environmentNotFound(id: string): AnabranchError {
  return new AnabranchError(
    'ENVIRONMENT_NOT_FOUND',
    `No environment ${id} is here: it was never made, or was deleted. ListEnvironments shows those of a run.`,
    { metadata: { environment: id } },
  );
}
