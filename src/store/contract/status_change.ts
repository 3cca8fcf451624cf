import type { Instant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { Page } from './request.ts';

/** Owner of a history, by noun and id. */
export interface StatusOwner {
  readonly noun: 'RUN' | 'STAGE' | 'TRAJECTORY' | 'ROLLOUT' | 'ENVIRONMENT';
  readonly id: string;
}

export interface StatusChangeStore {
  /** By ordinal, `ascending` or descending. The cursor is the ordinal of the last row. Errors: the noun's NOT_FOUND. */
  listStatusChanges(
    namespace: string,
    owner: StatusOwner,
    page: Page<bigint>,
    ascending: boolean,
  ): Promise<StatusChange[]>;
}

/** L5: one status change, recorded in the transaction that made it. */
export interface StatusChange {
  readonly ordinal: bigint;
  readonly oldStatus: Status | undefined;
  readonly newStatus: Status;
  readonly phase: string;
  readonly message: string;
  readonly metadataJson: string;
  readonly actor: string;
  readonly progressPercent: number | undefined;
  readonly changeTime: Instant;
}
