import type { Caller } from '../../domain/caller.ts';
import type { InitialStatus, Status, Verb } from '../../domain/lifecycle.ts';
import type { Environment } from '../../domain/rollout.ts';
import type { IdempotencyKey } from './idempotency.ts';
import type { Page } from './page.ts';
import type { MoveDetails } from './run.ts';

export interface EnvironmentStore {
  /**
   * Creates an environment. Errors: RUN_NOT_FOUND, ENVIRONMENT_EXISTS, REQUEST_ID_REUSED, ENVIRONMENT_NOT_FOUND
   * (created with this key and deleted since).
   */
  createEnvironment(caller: Caller, newEnvironment: NewEnvironment, key?: IdempotencyKey): Promise<Environment>;

  getEnvironment(namespace: string, id: string): Promise<Environment | undefined>;

  /**
   * Lists environments, newest first. The cursor is the key of the last row. Errors: RUN_NOT_FOUND, ROLLOUT_NOT_FOUND.
   */
  listEnvironments(
    namespace: string,
    of: { readonly runId: string } | { readonly rolloutId: string },
    statuses: readonly Status[] | undefined,
    page: Page<bigint>,
  ): Promise<Environment[]>;

  /**
   * L2 except Reopen, L5: applies a verb as `moveRun` does. An undefined `externalId` is not changed. Errors:
   * ENVIRONMENT_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT.
   */
  moveEnvironment(
    caller: Caller,
    id: string,
    verb: Exclude<Verb, 'reopen'>,
    details: MoveDetails,
    externalId: string | undefined,
  ): Promise<Environment>;
}

export interface NewEnvironment {
  readonly id: string;
  readonly runId: string;
  readonly type: string;
  readonly externalId: string;
  readonly status: InitialStatus;
  readonly labels: ReadonlyMap<string, string>;
  readonly configJson: string;
  readonly phase: string;
}
