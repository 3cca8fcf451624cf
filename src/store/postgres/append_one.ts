import type { SeenHead } from '../sql/engine.ts';
import type { StepRow } from '../sql/step/row.ts';
import { STEPS } from '../sql/tables/steps.ts';
import { valuesOf } from '../sql/tables/table.ts';
import { bindOptionalReal } from '../sql/values.ts';
import { namesOf } from './rows.ts';
import { SCHEMA } from './schema.ts';

/** SQL of the step columns whose values come from the head. $7 belongs to the head only. */
const HEAD_COLUMNS: Readonly<Record<string, string>> = {
  tree: '$1',
  trajectory: '$2',
  step_number: '$3',
  writer_epoch: '$4',
  reward_sum: '$5',
  byte_sum: '$6',
  commit_time: 'm.update_time',
};
const OWN_COLUMNS = STEPS.order.filter(({ name }) => !(name in HEAD_COLUMNS));

/**
 * The update checks and locks the row: Postgres evaluates its conditions on the latest version, even if another
 * transaction has just changed it. A step is inserted only if the update changed the row. A row that another
 * transaction holds is skipped, as in `lockHeads`.
 */
export const APPEND_ONE = `with free as materialized (
    select tree, key from ${SCHEMA}.trajectories where tree = $1::bigint and key = $2::bigint for no key update skip locked),
  m as (
    update ${SCHEMA}.trajectories as t set next_step_number = t.next_step_number + 1, reward_sum = $5::double precision, byte_sum = $6::bigint,
      branch_reward_sum = $7::double precision,
      update_time = clock_timestamp()
    from free where t.tree = free.tree and t.key = free.key and t.tree = $1::bigint and t.key = $2::bigint
      and t.next_step_number = $3::bigint and t.writer_epoch = $4::bigint and t.status = 'RUNNING' and not t.hidden
    returning t.update_time),
  s as (
    insert into ${SCHEMA}.steps (${namesOf(STEPS.order)})
    select ${stepValues()} from m)
  select update_time from m`;

function stepValues(): string {
  let parameter = 7;
  return STEPS.order
    .map(({ name, type }) => {
      const known = HEAD_COLUMNS[name];
      if (known !== undefined) return known;
      parameter += 1;
      return `$${parameter}::${type}`;
    })
    .join(', ');
}

/** Returns the parameters of `APPEND_ONE`. */
export function appendOneValues(seen: SeenHead, { row, sums }: StepRow): unknown[] {
  const head = [seen.tree, seen.key, seen.nextStepNumber, seen.writerEpoch];
  const moved = [row.reward_sum, row.byte_sum, bindOptionalReal(sums.branchRewardSum)];
  return [...head, ...moved, ...valuesOf(row, OWN_COLUMNS)];
}
