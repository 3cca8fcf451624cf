import { type RawBuilder, sql } from 'kysely';
import type { Engine } from '../../kit/engine.ts';

/** SQL of an own step of a trajectory. */
export interface StepTerms {
  readonly tree: unknown;
  readonly trajectory: unknown;
  readonly stepNumber: unknown;
}

/**
 * Column of the segment that has an own step: one look-up by key. It is the last segment that begins at or
 * before the step, so for a step after the end it is the last of all. Null if no segment begins before.
 */
export function columnOfSegment<Column extends 'first_step_number' | 'byte_sum'>(
  engine: Pick<Engine, 'sql'>,
  column: Column,
  { tree, trajectory, stepNumber }: StepTerms,
): RawBuilder<bigint | null> {
  return sql`(select b.${sql.ref(column)} from ${engine.sql.table('segments')} as b
    where b.tree = ${tree} and b.trajectory = ${trajectory} and b.first_step_number <= ${stepNumber}
    order by b.first_step_number desc limit 1)`;
}

/** Number from which on a segment of the trajectory may lack `body_bytes`, and so be absent from indexes. */
export function indexedTo(engine: Pick<Engine, 'sql'>, tree: unknown, trajectory: unknown): RawBuilder<bigint> {
  return sql`(select t.indexed_to from ${engine.sql.table('trajectories')} as t
    where t.tree = ${tree} and t.key = ${trajectory})`;
}
