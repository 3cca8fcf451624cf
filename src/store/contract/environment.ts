import type { Caller } from '../../domain/caller.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { Environment } from '../../domain/rollout.ts';
import type { Given, Page } from './request.ts';

export interface EnvironmentStore {
  /**
   * L2: creates the environment, or updates the given fields of the existing one. Labels are replaced. Writes nothing
   * if nothing changes. Safe for concurrent callers. Errors: RUN_NOT_FOUND, ENVIRONMENT_EXISTS (in another run),
   * ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  upsertEnvironment(
    caller: Caller,
    environment: EnvironmentUpsert,
  ): Promise<{ readonly environment: Environment; readonly created: boolean }>;

  /**
   * Lists environments, newest first. The cursor is the key of the last row. Errors: RUN_NOT_FOUND, ROLLOUT_NOT_FOUND.
   */
  listEnvironments(namespace: string, filter: EnvironmentFilter, page: Page<bigint>): Promise<Environment[]>;
}

/** Undefined fields are not changed; in a new environment they are empty, and its status is PENDING. */
export interface EnvironmentUpsert
  extends Given<Pick<Environment, 'type' | 'externalId' | 'status' | 'phase' | 'labels' | 'configJson'>> {
  readonly id: string;
  readonly runId: string;
  /** Undefined: a new status has no message. */
  readonly message?: string | undefined;
  /** For the StatusChange, if the status changes. */
  readonly metadataJson?: string;
}

/** Conditions are combined with AND. */
export interface EnvironmentFilter {
  readonly runId?: string;
  readonly rolloutId?: string;
  /** Of the rollout. */
  readonly attempt?: number;
  readonly ids?: readonly string[];
  readonly statuses?: readonly Status[];
}
