import { type Kysely, type RawBuilder, sql } from 'kysely';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { StepPlace } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { type SegmentSums, type Sums, sumsOfBranch } from '../../kit/running_sums.ts';
import { columnOfSegment } from './segment_lookup.ts';
import { BODY_BYTES } from './stored_body.ts';

export function placeKey({ owner, stepNumber }: StepPlace): string {
  return tupleKey(owner, stepNumber);
}

interface SumRow extends SegmentSums {
  readonly trajectory: bigint;
  readonly step_number: bigint;
}

/**
 * Returns the sums with which a branch at each of these steps begins, in one statement that reads no contents. Steps
 * that do not exist have none.
 */
export async function sumsAt<T>(
  { engine, db }: { readonly engine: Pick<Engine, 'sql'>; readonly db: Kysely<T> },
  places: readonly StepPlace[],
): Promise<Map<string, Sums>> {
  if (places.length === 0) return new Map();
  const rows = places.map(
    ({ tree, owner, stepNumber }): RawBuilder<unknown> =>
      sql`(cast(${tree} as bigint), cast(${owner} as bigint), cast(${stepNumber} as bigint))`,
  );
  const step = { tree: sql`w.tree`, trajectory: sql`w.trajectory`, stepNumber: sql`w.step_number` };
  const found = await sql<SumRow>`
    with w(tree, trajectory, step_number) as (values ${sql.join(rows)})
    select s.trajectory, w.step_number, s.first_step_number, s.next_step_number, s.rewards, s.reward_sum, s.byte_sum,
      ${BODY_BYTES} as body_bytes
    from w cross join ${engine.sql.table('segments')} as s
    where s.tree = w.tree and s.trajectory = w.trajectory and s.next_step_number > w.step_number
      and s.first_step_number = ${columnOfSegment(engine, 'first_step_number', step)}`.execute(db);
  return new Map(
    found.rows.map((row) => [
      placeKey({ tree: 0n, owner: row.trajectory, stepNumber: row.step_number }),
      sumsOfBranch(row, row.step_number),
    ]),
  );
}
