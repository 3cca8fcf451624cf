import type { KeyedTable } from '../sql/engine.ts';

/** A schema of its own, so that a role that may only connect and create a schema suffices. */
export const SCHEMA = 'anabranch';

/** The sequence that gives the keys of a table. */
export function sequenceOf(table: KeyedTable): string {
  return `${SCHEMA}.${table === 'trajectories' ? 'trajectory_keys' : 'run_keys'}`;
}
