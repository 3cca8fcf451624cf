import type { SeenHead } from '../sql/engine.ts';
import type { Sums } from '../sql/step/running_sums.ts';
import type { SegmentRow } from '../sql/tables/steps.ts';
import { SEGMENTS } from '../sql/tables/steps.ts';
import { namesOf, valuesOf } from '../sql/tables/table.ts';
import { bindOptionalReal, bindReal } from '../sql/values.ts';
import { SCHEMA } from './schema.ts';

/** SQL of the columns of segments whose values come from the head. $5 to $11 are its new sums. */
const HEAD_COLUMNS: Readonly<Record<string, string>> = {
  tree: '$1',
  trajectory: '$2',
  first_step_number: '$3',
  next_step_number: '$3 + 1',
  writer_epoch: '$4',
  commit_time: 'm.update_time',
};
const OWN_COLUMNS = SEGMENTS.order.filter(({ name }) => !(name in HEAD_COLUMNS));

/**
 * The update checks and locks the row: Postgres evaluates its conditions on the latest version, even if another
 * transaction has just changed it. A step is inserted only if the update changed the row. A row that another
 * transaction holds is skipped, as in `lockHeads`.
 */
export const APPEND_ONE = `with free as materialized (
    select tree, key from ${SCHEMA}.trajectories where tree = $1::bigint and key = $2::bigint for no key update skip locked),
  m as (
    update ${SCHEMA}.trajectories as t set next_step_number = t.next_step_number + 1, reward_sum = $5::double precision, byte_sum = $6::bigint,
      branch_reward_sum = $7::double precision, timed_turns = $8::bigint, turn_seconds = $9::double precision,
      min_reward = $10::double precision, max_reward = $11::double precision, update_time = clock_timestamp()
    from free where t.tree = free.tree and t.key = free.key and t.tree = $1::bigint and t.key = $2::bigint
      and t.next_step_number = $3::bigint and t.writer_epoch = $4::bigint and t.status = 'RUNNING' and not t.hidden
    returning t.update_time),
  s as (
    insert into ${SCHEMA}.segments (${namesOf(SEGMENTS.order)})
    select ${stepValues()} from m)
  select update_time from m`;

function stepValues(): string {
  let parameter = 11;
  return SEGMENTS.order
    .map(({ name, type }) => {
      const known = HEAD_COLUMNS[name];
      if (known !== undefined) return known;
      parameter += 1;
      return `$${parameter}::${type}`;
    })
    .join(', ');
}

/** Returns the parameters of `APPEND_ONE`. */
export function appendOneValues(seen: SeenHead, row: SegmentRow, sums: Sums): unknown[] {
  const head = [seen.tree, seen.key, seen.nextStepNumber, seen.writerEpoch];
  const moved = [
    bindReal(sums.rewardSum),
    sums.byteSum,
    bindOptionalReal(sums.branchRewardSum),
    sums.timedTurns,
    sums.turnSeconds,
    bindOptionalReal(sums.minReward),
    bindOptionalReal(sums.maxReward),
  ];
  return [...head, ...moved, ...valuesOf(row, OWN_COLUMNS)];
}
