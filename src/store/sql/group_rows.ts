import { type CompiledQuery, type InferResult, sql } from 'kysely';
import { parseInstant } from '../../domain/instant.ts';
import { isTerminal, type Status } from '../../domain/lifecycle.ts';
import { type Group, type GroupStatistics, type OnSuccess, rewardStatistics } from '../../domain/rollout.ts';
import type { BookView } from '../contract/experiment.ts';
import type { GroupPlace } from '../contract/group.ts';
import type { Db, Engine, Tx } from './engine.ts';
import { padded } from './statement_shapes.ts';
import { isSet, readLabels, readMetrics, readReal } from './values.ts';

type GroupRow = Awaited<ReturnType<ReturnType<typeof selectGroups>['execute']>>[number];

/** Rows of groups (`g`) of runs that are there, with the ids of their runs (`r`) and stages (`s`). */
export function selectGroups(db: Db | Tx, view: BookView) {
  return (
    db
      .selectFrom('groups as g')
      .innerJoin('runs as r', (join) => join.onRef('r.key', '=', 'g.run').on('r.hidden', '=', 0))
      .innerJoin('stages as s', 's.key', 'g.stage')
      .select([
        'g.key',
        'g.id',
        'g.run',
        'g.stage',
        'g.number',
        'g.batch',
        'g.on_success',
        'g.labels',
        'g.metrics',
        'g.create_time',
        'g.update_time',
        'g.revision',
        'r.id as run_id',
        's.id as stage_id',
      ])
      // JSON of any size: the BASIC view does not even read it.
      .select((view === 'FULL' ? sql<string>`g.metadata_json` : sql<string>`''`).as('metadata_json'))
  );
}

/** FULL view; undefined if none is there. */
export async function findGroup(
  engine: Engine,
  db: Db | Tx,
  namespace: string,
  place: GroupPlace | { readonly key: bigint },
): Promise<Group | undefined> {
  const query = selectGroups(db, 'FULL').where('g.namespace', '=', namespace).where('s.namespace', '=', namespace);
  const [group] = await readGroups(engine, db, at(query, place));
  return group;
}

function at(query: GroupQuery, place: GroupPlace | { readonly key: bigint }): GroupQuery {
  if ('key' in place) return query.where('g.key', '=', place.key);
  if ('id' in place) return query.where('g.id', '=', place.id);
  return query.where('s.id', '=', place.stageId).where('g.number', '=', place.number);
}

type GroupQuery = ReturnType<typeof selectGroups>;

/** The groups of a query, in its order, with their statistics: in three statements however many there are. */
export async function readGroups(
  engine: Engine,
  db: Db | Tx,
  query: GroupQuery | CompiledQuery<GroupRow>,
): Promise<Group[]> {
  const { rows } = await db.executeQuery(query);
  const counts = await countSiblings(
    engine,
    db,
    rows.map(({ key }) => key),
  );
  return rows.map((row) => readGroup(row, counts.get(row.key) ?? NO_SIBLINGS));
}

/** What siblings come to, and how often their rows have changed. */
interface Siblings {
  readonly statistics: GroupStatistics;
  readonly revisions: bigint;
}

/** A group's value changes with its siblings', so its revision rises with theirs. */
function readGroup(row: GroupRow, { statistics, revisions }: Siblings): Group {
  return {
    key: row.key,
    id: row.id,
    run: { key: row.run, id: row.run_id },
    stage: { key: row.stage, id: row.stage_id },
    number: row.number,
    batch: row.batch ?? undefined,
    onSuccess: row.on_success as OnSuccess,
    labels: readLabels(row.labels),
    metrics: readMetrics(row.metrics),
    metadataJson: row.metadata_json,
    statistics,
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    revision: row.revision + revisions,
  };
}

const NO_SIBLINGS: Siblings = Object.freeze({
  statistics: Object.freeze({
    pending: 0n,
    requeued: 0n,
    live: 0n,
    completed: 0n,
    failed: 0n,
    cancelled: 0n,
    judged: 0n,
    successes: 0n,
    rewards: { count: 0n, mean: undefined, std: undefined },
    best: undefined,
  }),
  revisions: 0n,
});

/** Siblings that are alike. */
type Alike = InferResult<ReturnType<typeof selectAlike>>[number];

/**
 * Rewards repeat, so they are counted, not summed: what is made of them is the rule's own, the same on both engines, and no sum overflows.
 */
function selectAlike(db: Db, groups: readonly bigint[]) {
  return db
    .selectFrom('rollouts as r')
    .select(['r.group_key', 'r.status', 'r.success', 'r.reward'])
    .select((eb) => [
      eb.fn.countAll<bigint>().as('count'),
      eb.fn.min<bigint>('r.number').as('first'),
      sql<bigint>`count(case when r.attempt > 0 then 1 end)`.as('tried'),
      // Postgres sums whole numbers to numeric.
      sql<bigint>`cast(sum(r.revision) as bigint)`.as('revisions'),
    ])
    .where('r.group_key', 'in', groups)
    .groupBy(['r.group_key', 'r.status', 'r.success', 'r.reward']);
}

async function countSiblings(engine: Engine, db: Db | Tx, groups: readonly bigint[]): Promise<Map<bigint, Siblings>> {
  if (groups.length === 0) return new Map();
  const query = engine.kept.of('siblings of groups', [padded(groups)], (among) => selectAlike(engine.db, among));
  const byGroup = Map.groupBy((await db.executeQuery(query)).rows, (alike) => alike.group_key);
  const best = new Map([...byGroup].flatMap(([group, alike]) => bestOf(group, alike)));
  const ids = await readIds(engine, db, [...best.values()]);
  return new Map(
    [...byGroup].map(([group, alike]) => {
      const statistics = { ...countsOf(alike), rewards: rewardStatistics(rewardsOf(alike)) };
      const found = best.get(group);
      const rolloutId = ids.get(group);
      const winner = found === undefined || rolloutId === undefined ? undefined : { rolloutId, reward: found.reward };
      return [group, { statistics: { ...statistics, best: winner }, revisions: sum(alike, (each) => each.revisions) }];
    }),
  );
}

function countsOf(siblings: readonly Alike[]) {
  const having = (is: (alike: Alike) => boolean) => sum(siblings.filter(is), ({ count }) => count);
  const ended = (alike: Alike) => isTerminal(alike.status as Status);
  return {
    pending: having(({ status }) => status === 'PENDING'),
    requeued: sum(
      siblings.filter(({ status }) => status === 'PENDING'),
      ({ tried }) => tried,
    ),
    live: having(({ status }) => status === 'INITIALIZING' || status === 'RUNNING'),
    completed: having(({ status }) => status === 'COMPLETED'),
    failed: having(({ status }) => status === 'FAILED'),
    cancelled: having(({ status }) => status === 'CANCELLED'),
    judged: having((alike) => ended(alike) && alike.success !== null),
    successes: having((alike) => ended(alike) && alike.success !== null && isSet(alike.success)),
  };
}

function sum(siblings: readonly Alike[], of: (alike: Alike) => bigint): bigint {
  return siblings.reduce((total, alike) => total + of(alike), 0n);
}

/** Of terminal ones; missing ones are left out. */
function rewardsOf(siblings: readonly Alike[]): number[] {
  return siblings.flatMap(({ status, reward, count }) =>
    reward === null || !isTerminal(status as Status) ? [] : new Array<number>(Number(count)).fill(readReal(reward)),
  );
}

interface Best {
  readonly group: bigint;
  readonly number: bigint;
  readonly reward: number;
}

/** The largest reward, the first by number. */
function bestOf(group: bigint, siblings: readonly Alike[]): [bigint, Best][] {
  let best: Best | undefined;
  for (const { status, reward: stored, first: number } of siblings) {
    if (stored === null || !isTerminal(status as Status)) continue;
    const reward = readReal(stored);
    if (Number.isNaN(reward)) continue;
    if (best === undefined || reward > best.reward || (reward === best.reward && number < best.number))
      best = { group, number, reward };
  }
  return best === undefined ? [] : [[group, best]];
}

async function readIds(engine: Engine, db: Db | Tx, best: readonly Best[]): Promise<Map<bigint, string>> {
  if (best.length === 0) return new Map();
  const places = padded(best);
  const [groups, numbers] = [places.map(({ group }) => group), places.map(({ number }) => number)];
  const query = engine.kept.of('best of groups', [groups, numbers], (ofGroups, ofNumbers) => {
    const pairs = ofGroups.map((group, i) => sql`(cast(${group} as bigint), cast(${ofNumbers[i]} as bigint))`);
    return engine.db
      .selectFrom('rollouts as r')
      .select(['r.group_key', 'r.id'])
      .where(sql<boolean>`(r.group_key, r.number) in (values ${sql.join(pairs)})`);
  });
  const { rows } = await db.executeQuery(query);
  return new Map(rows.map(({ group_key, id }) => [group_key, id]));
}
