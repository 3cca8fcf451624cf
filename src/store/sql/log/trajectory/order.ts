import { type RawBuilder, sql } from 'kysely';
import { isInShard } from '../../../../domain/shard.ts';
import type { Page } from '../../../contract/request.ts';
import type { TrajectoryFilter, TrajectoryPlace, TrajectorySort } from '../../../contract/trajectory.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindReal, readReal } from '../../kit/values.ts';
import { isNamed, isOwn } from '../read/named_segments.ts';
import { labelName, runBegin, runEnd, runName, runsIn } from '../read/step_runs.ts';
import { IS_NAN, matching } from './list.ts';

type FoundPlace = TrajectoryPlace & { readonly id: string };

/** Trajectories whose steps one statement examines. */
const EXAMINED = 256;

export async function orderTrajectories(
  scope: ReadScope,
  filter: TrajectoryFilter,
  order: TrajectorySort,
  { limit, after }: Page<TrajectoryPlace>,
): Promise<TrajectoryPlace[]> {
  const found: TrajectoryPlace[] = [];
  for (let last = after; ; ) {
    const page = await placesAfter(scope, filter, order, { limit, after: last });
    const { shard, stepLabels } = filter;
    const ofShard = shard === undefined ? page : page.filter(({ id }) => isInShard(id, shard));
    const matches = stepLabels === undefined ? ofShard : await withLabelledStep(scope, ofShard, stepLabels);
    for (const { key, rank } of matches) found.push({ key, rank });
    if (found.length >= limit || page.length < limit) return found.slice(0, limit);
    last = page.at(-1);
    await nextIteration();
  }
}

async function placesAfter(
  scope: ReadScope,
  filter: TrajectoryFilter,
  { by, descending }: TrajectorySort,
  { limit, after }: Page<TrajectoryPlace>,
): Promise<FoundPlace[]> {
  const places = scope.db.selectFrom('trajectories as t').select(['t.key', 't.id', 't.reward_sum']);
  let query = await matching(scope, places, filter);
  if (query === undefined) return [];
  if (by === 'REQUESTED') {
    const rows = await query.execute();
    return requested(rows, filter.ids ?? [], descending, { limit, after });
  }
  const [direction, beyond] = descending ? (['desc', '<'] as const) : (['asc', '>'] as const);
  if (by === 'REWARD_SUM') query = query.orderBy(IS_NAN).orderBy('t.reward_sum', direction);
  if (after !== undefined) {
    const { key, rank } = after;
    query = query.where(({ eb, and, or }) => {
      const follows = eb('t.key', beyond, key);
      if (by === 'CREATION') return follows;
      if (Number.isNaN(rank)) return and([eb(IS_NAN, '=', 1), follows]);
      const sum = sql<number>`${bindReal(rank)}`;
      return or([eb(IS_NAN, '=', 1), eb('t.reward_sum', beyond, sum), and([eb('t.reward_sum', '=', sum), follows])]);
    });
  }
  const rows = await query.orderBy('t.key', direction).limit(limit).execute();
  return rows.map(({ key, id, reward_sum }) => ({ key, id, rank: readReal(reward_sum) }));
}

/**
 * Returns a page of rows in the order of the ids. A request has so few ids that all their rows are read for each page.
 */
function requested(
  rows: readonly { readonly key: bigint; readonly id: string }[],
  ids: readonly string[],
  descending: boolean,
  { limit, after }: Page<TrajectoryPlace>,
): FoundPlace[] {
  const byId = new Map(rows.map((row) => [row.id, row.key]));
  const places = [...new Set(ids)].flatMap((id, rank) => {
    const key = byId.get(id);
    return key === undefined ? [] : [{ key, id, rank }];
  });
  if (descending) places.reverse();
  const follows = ({ rank }: FoundPlace) => after === undefined || (descending ? rank < after.rank : rank > after.rank);
  return places.filter(follows).slice(0, limit);
}

/** Returns those of the trajectories that own a step with all labels. */
async function withLabelledStep(
  scope: ReadScope,
  places: readonly FoundPlace[],
  labels: ReadonlyMap<string, string>,
): Promise<readonly FoundPlace[]> {
  const names = [...labels].map(([key, value]) => labelName(key, value));
  const labelled: FoundPlace[] = [];
  for (let at = 0; at < places.length; at += EXAMINED) {
    if (at > 0) await nextIteration();
    const some = places.slice(at, at + EXAMINED);
    const keys = await labelledAmong(
      scope,
      some.map(({ key }) => key),
      names,
    );
    for (const place of some) if (keys.has(place.key)) labelled.push(place);
  }
  return labelled;
}

/** Returns the keys of those trajectories of which a segment has a step with all names among its labels. */
async function labelledAmong(
  { engine, namespace }: ReadScope,
  keys: readonly bigint[],
  names: readonly string[],
): Promise<ReadonlySet<bigint>> {
  const runs = (alias: string) => runsIn(engine, sql<string>`b.labels`, alias);
  // A step that has all labels exists only if one does at the beginning of a run of one of them.
  const beginsAmong = sql.join(
    names.map((name) => sql`(${runName('r')} = ${name})`),
    sql` or `,
  );
  const others = names.map(
    (name) => sql`and exists (select 1 from ${runs('q')} where ${runName('q')} = ${name}
      and ${runBegin('q')} <= ${runBegin('r')} and ${runEnd('q')} > ${runBegin('r')})`,
  );
  const segments = sql`${engine.sql.table('segments')} as b cross join ${runs('r')}`;
  // The limit keeps Postgres from reading the segments of all trajectories at once.
  const firstOf = (from: RawBuilder<unknown>, of: RawBuilder<unknown>) => sql`(
      select 1 from ${from} where ${of} and (${beginsAmong}) ${names.length > 1 ? sql.join(others, sql` `) : sql``} limit 1)`;
  const owner = { tree: sql`t.tree`, key: sql`t.key` };
  const wanted = names.map((name) => ({ column: 'labels', names: [name] }) as const);
  const inIndex = firstOf(
    sql`${engine.sql.table('segment_names')} as n cross join ${segments}`,
    sql`${isOwn('n', owner)} and ${isNamed(engine, wanted, owner)}
      and b.tree = n.tree and b.trajectory = n.trajectory and b.first_step_number = n.first_step_number`,
  );
  const unindexed = firstOf(
    segments,
    sql`${isOwn('b', owner)} and b.labels <> '[]' and b.body_bytes is null and b.first_step_number >= t.indexed_to`,
  );
  const rows = await engine.reads.rows<[key: number]>(sql`select t.key from ${engine.sql.table('trajectories')} as t
    where t.namespace = ${namespace} and ${engine.sql.among(sql.ref('t.key'), keys)}
      and coalesce(${inIndex}, ${unindexed}) = 1`);
  return new Set(rows.map(([key]) => BigInt(key)));
}
