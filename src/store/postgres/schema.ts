import type { KeyedTable } from '../sql/kit/engine.ts';

/** A separate schema, so that the role needs only the rights to connect and to create a schema. */
export const SCHEMA = 'anabranch';

/** Returns the sequence for the keys of a table. */
export function sequenceOf(table: KeyedTable): string {
  return `${SCHEMA}.${table === 'trajectories' ? 'trajectory_keys' : 'run_keys'}`;
}
