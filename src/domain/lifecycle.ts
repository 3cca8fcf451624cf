/** One vocabulary of status (design section 3). Which moves are legal is a table a noun. */
export const STATUSES = ['PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED'] as const;
export type Status = (typeof STATUSES)[number];

/** L1: a trajectory is RUNNING from its creation and moves only by seal, for good. */
export type SealStatus = 'COMPLETED' | 'FAILED' | 'CANCELLED';
export type TrajectoryStatus = 'RUNNING' | SealStatus;

export function isSealed(status: TrajectoryStatus): status is SealStatus {
  return status !== 'RUNNING';
}
