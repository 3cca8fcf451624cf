import type { ChangeStore } from '../../src/store/contract/change.ts';

/** The changes of a store in which nothing ever changes. */
export const QUIET_CHANGES: ChangeStore = {
  onChange: () => () => undefined,
  hearsOthers: true,
  findChanges: async () => ({ trajectories: [], runs: [], queues: [], horizon: { next: 0n, open: [], era: '' } }),
};
