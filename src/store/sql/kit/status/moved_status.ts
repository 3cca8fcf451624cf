import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import type { MoveDetails } from '../../../contract/run.ts';
import type { StatusMove } from './status_changes.ts';

/** The columns of runs, stages and environments that describe their status. */
export interface StatusRow {
  readonly status: string;
  readonly status_message: string;
  readonly phase: string;
  readonly start_time: string | null;
  readonly status_changes: bigint;
  /** Only runs have a result. */
  readonly result_json?: string;
}

/**
 * Returns what every verb writes to the row of a run, stage or environment. `start_time` is of the first start,
 * `end_time` of the current end.
 */
export function movedColumns(row: StatusRow, to: Status, details: MoveDetails, now: string) {
  return {
    status: to,
    status_message: details.message,
    phase: details.phase ?? row.phase,
    start_time: row.start_time ?? (to === 'RUNNING' ? now : null),
    end_time: isTerminal(to) ? now : null,
    status_changes: row.status_changes + 1n,
  };
}

/** Returns the StatusChange of the same verb. `row` is the row before it. */
export function statusMove(row: StatusRow, to: Status, details: MoveDetails, progressPercent?: number): StatusMove {
  return {
    ordinal: row.status_changes,
    from: row.status as Status,
    to,
    message: details.message,
    phase: details.phase ?? row.phase,
    metadataJson: details.metadataJson,
    progressPercent,
  };
}
