import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';

/** The columns of a row: integers as bigint, texts and times as text. */
export type ConditionedRow = Readonly<Record<string, unknown>>;

interface Condition {
  readonly expected: string;
  readonly holds: (row: ConditionedRow) => boolean;
}

const isLive = ({ status }: ConditionedRow) => status === 'INITIALIZING' || status === 'RUNNING';
const areAlike = (...values: readonly unknown[]) => values.every((value) => (value === null) === (values[0] === null));

const HAS_HISTORY: Condition = {
  expected: '"status_changes" must be at least 1',
  holds: ({ status_changes }) => (status_changes as bigint) > 0n,
};

/** What columns of one row must be together, by table. Imports and `verify` read it. */
export const CONDITIONS: Readonly<Record<string, readonly Condition[]>> = {
  runs: [
    HAS_HISTORY,
    {
      expected: '"branch_point" must be set if the run has a parent, and not otherwise',
      holds: ({ parent, branch_point }) => areAlike(parent, branch_point),
    },
    {
      expected: 'the last pause must have an end unless "status" is PAUSED',
      holds: ({ status, pauses }) => status === 'PAUSED' || !hasOpenPause(pauses as string),
    },
  ],
  stages: [
    HAS_HISTORY,
    {
      expected: '"queue_close_time" must be set if the stage has ended',
      holds: ({ status, queue_close_time }) => !isTerminal(status as Status) || queue_close_time !== null,
    },
  ],
  environments: [HAS_HISTORY],
  groups: [
    {
      expected: '"terminal_rollouts" must be at most "rollouts", and at least "tried_rollouts"',
      holds: (row) =>
        (row.tried_rollouts as bigint) <= (row.terminal_rollouts as bigint) &&
        (row.terminal_rollouts as bigint) <= (row.rollouts as bigint),
    },
  ],
  rollouts: [
    HAS_HISTORY,
    {
      expected: '"start_step" must be set together with "start_trajectory"',
      holds: ({ start_trajectory, start_step }) => areAlike(start_trajectory, start_step),
    },
    {
      expected: '"refunded_attempts" must be at most "attempt"',
      holds: ({ refunded_attempts, attempt }) => (refunded_attempts as bigint) <= (attempt as bigint),
    },
    {
      expected:
        'a rollout must have an attempt and a lease while it is INITIALIZING or RUNNING, and no lease otherwise',
      holds: (row) => {
        const { attempt, lease_end_time, lease_ms } = row;
        const hasLease = lease_end_time !== null;
        return hasLease === isLive(row) && (!hasLease || ((attempt as bigint) > 0n && (lease_ms as bigint) > 0n));
      },
    },
  ],
  trajectories: [
    {
      expected: '"seal_time" must be set unless "status" is RUNNING',
      holds: ({ status, seal_time }) => (status === 'RUNNING') === (seal_time === null),
    },
  ],
};

function hasOpenPause(pauses: string): boolean {
  return pauses !== '' && (JSON.parse(pauses) as readonly (readonly string[])[]).at(-1)?.length === 1;
}

/** Returns what the columns of a row, each of its form, would have to be together. Undefined if they fit. */
export function brokenCondition(table: string, row: ConditionedRow): string | undefined {
  return CONDITIONS[table]?.find(({ holds }) => !holds(row))?.expected;
}
