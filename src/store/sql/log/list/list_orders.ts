import { type RawBuilder, sql } from 'kysely';
import { LAST_COMMIT } from './list_conditions.ts';
import type { Rank, SearchOrder } from './listed_step.ts';

/** What an order means for steps, and for the rows that tell which steps come first. */
export interface OrderTerms {
  /** Rows `b` that are looked into: segments, or scores of single steps. */
  readonly table: 'segments' | 'step_scores';
  /** Number of the first step of such a row. */
  readonly number: RawBuilder<unknown>;
  /** Value of a step `s`. */
  readonly step: RawBuilder<unknown>;
  /** Value of a row `b`: none of its steps comes before. */
  readonly bound: RawBuilder<unknown>;
  /** Conditions on a row that has steps in this order. */
  readonly isKnown: readonly RawBuilder<unknown>[];
  /** Whether the rows come from an index that has only the segments with `body_bytes`. */
  readonly isIndexed?: true;
  /** Whether a row may have a step after this one. */
  readonly mayFollow: (after: Rank) => RawBuilder<unknown>;
}

const OF_SEGMENTS = { table: 'segments', number: sql`b.first_step_number` } as const;

const TERMS: Readonly<Record<SearchOrder['by'], (order: SearchOrder) => OrderTerms>> = {
  NUMBER: ({ descending }) => ({
    ...OF_SEGMENTS,
    step: sql`s.step_number`,
    bound: descending ? sql`b.next_step_number - 1` : sql`b.first_step_number`,
    isKnown: [],
    mayFollow: ({ stepNumber }) =>
      descending
        ? sql`b.first_step_number <= cast(${stepNumber} as bigint)`
        : sql`b.next_step_number > cast(${stepNumber} as bigint)`,
  }),
  TIME: ({ descending }) => ({
    ...OF_SEGMENTS,
    step: sql`s.commit_time`,
    bound: descending ? LAST_COMMIT : sql`b.commit_time`,
    isKnown: [],
    mayFollow: ({ value }) => (descending ? sql`b.commit_time <= ${value}` : sql`${LAST_COMMIT} >= ${value}`),
  }),
  REWARD: ({ descending }) => ({
    ...OF_SEGMENTS,
    step: sql`s.reward`,
    bound: descending ? sql`b.max_reward` : sql`b.min_reward`,
    isKnown: [sql`b.max_reward is not null`],
    isIndexed: true,
    mayFollow: ({ value }) => (descending ? sql`b.min_reward <= ${value}` : sql`b.max_reward >= ${value}`),
  }),
  METRIC: (order) => ({
    table: 'step_scores',
    number: sql`b.step_number`,
    step: sql`d.bound`,
    bound: sql`b.value`,
    isKnown: [sql`b.metric = ${order.metric}`],
    mayFollow: (after) => afterRank(order, sql`b.value`, sql`b.step_number`, sql`b.trajectory`, after),
  }),
  UNRANKED: ({ descending }) => ({
    ...OF_SEGMENTS,
    step: sql`0`,
    bound: sql`0`,
    isKnown: [sql`(b.rewards like '%null%' or b.rewards like '%NaN%')`],
    mayFollow: ({ key, stepNumber }) =>
      descending
        ? sql`b.trajectory <= cast(${key} as bigint)`
        : sql`(b.trajectory > cast(${key} as bigint)
            or (b.trajectory = cast(${key} as bigint) and b.next_step_number > cast(${stepNumber} as bigint)))`,
  }),
};

export function termsOf(order: SearchOrder): OrderTerms {
  return TERMS[order.by](order);
}

/** Condition that a step comes after this rank. */
export function afterRank(
  order: SearchOrder,
  value: RawBuilder<unknown>,
  number: RawBuilder<unknown>,
  trajectory: RawBuilder<unknown>,
  rank: Rank,
): RawBuilder<unknown> {
  const operator = order.descending ? sql`<` : sql`>`;
  const ties = sql`(${trajectory}, ${number}) ${operator} (cast(${rank.key} as bigint), cast(${rank.stepNumber} as bigint))`;
  if (order.by === 'UNRANKED') return ties;
  const { value: bound } = rank;
  // The first condition is implied, and bounds the range of an index.
  return sql`${value} ${operator}= ${bound} and (${value} ${operator} ${bound} or ${ties})`;
}

export function directionOf({ descending }: SearchOrder): RawBuilder<unknown> {
  return descending ? sql`desc` : sql`asc`;
}

export function reverseOf({ descending }: SearchOrder): RawBuilder<unknown> {
  return descending ? sql`asc` : sql`desc`;
}
