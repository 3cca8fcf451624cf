import type { CompiledQuery } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import { type Group, type GroupStatistics, type OnSuccess, rewardStatistics } from '../../../../domain/rollout.ts';
import type { GroupReference } from '../../../contract/group.ts';
import type { View } from '../../../contract/request.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import { GROUPS } from '../../kit/tables/rollouts.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet, readLabels, readMetrics, readReal } from '../../kit/values.ts';

type GroupRow = Awaited<ReturnType<ReturnType<typeof selectGroups>['execute']>>[number];

/** Selects groups (`g`) of visible runs, with the ids of their runs (`r`) and stages (`s`). */
export function selectGroups(db: Db, view: View) {
  return db
    .selectFrom('groups as g')
    .innerJoin('runs as r', (join) => join.onRef('r.key', '=', 'g.run').on('r.hidden', '=', 0))
    .innerJoin('stages as s', 's.key', 'g.stage')
    .select(columnsIn(GROUPS, 'g', view, UNREAD))
    .select(['r.id as run_id', 's.id as stage_id']);
}

/** Columns that `readGroup` does not need. */
const UNREAD = [
  'namespace',
  'rollouts',
  'terminal_rollouts',
  'tried_rollouts',
  'terminal_turns',
  'timed_turns',
  'turn_seconds',
  'mark',
] as const;

/** Returns a group in FULL view, or undefined. */
export async function findGroup(
  { engine, db, namespace }: ReadScope,
  reference: GroupReference | { readonly key: bigint },
): Promise<Group | undefined> {
  const query = selectGroups(db, 'FULL').where('g.namespace', '=', namespace).where('s.namespace', '=', namespace);
  const [group] = await readGroups(engine, db, at(query, reference));
  return group;
}

function at(query: GroupQuery, reference: GroupReference | { readonly key: bigint }): GroupQuery {
  if ('key' in reference) return query.where('g.key', '=', reference.key);
  if ('id' in reference) return query.where('g.id', '=', reference.id);
  return query.where('s.id', '=', reference.stageId).where('g.number', '=', reference.number);
}

type GroupQuery = ReturnType<typeof selectGroups>;

/** Returns the groups of a query, in its order, with statistics. Uses two statements for any number of groups. */
export async function readGroups(
  engine: Engine,
  db: Db,
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

/** Statistics of the rollouts of a group, and the sum of their revisions. */
interface Siblings {
  readonly statistics: GroupStatistics;
  readonly revisions: bigint;
}

/** The revision of a group includes those of its rollouts, because its statistics change with them. */
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
    started: 0n,
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

/** Selects a row for each rollout, by number. Statistics are computed in TypeScript, so that both engines agree. */
function selectSiblings(db: Db, groups: readonly bigint[]) {
  return db
    .selectFrom('rollouts as r')
    .select(['r.group_key', 'r.status', 'r.success', 'r.reward', 'r.attempt', 'r.id', 'r.revision'])
    .where('r.group_key', 'in', groups)
    .orderBy('r.group_key')
    .orderBy('r.number');
}

type Sibling = Awaited<ReturnType<ReturnType<typeof selectSiblings>['execute']>>[number];

async function countSiblings(engine: Engine, db: Db, groups: readonly bigint[]): Promise<Map<bigint, Siblings>> {
  if (groups.length === 0) return new Map();
  const query = engine.kept.of('siblings of groups', [padded(groups)], (among) => selectSiblings(engine.db, among));
  const { rows } = await db.executeQuery(query);
  const byGroup = Map.groupBy(rows, ({ group_key }) => group_key);
  return new Map([...byGroup].map(([group, siblings]) => [group, statisticsOf(siblings)]));
}

function statisticsOf(siblings: readonly Sibling[]): Siblings {
  const by = { PENDING: 0, INITIALIZING: 0, RUNNING: 0, PAUSED: 0, COMPLETED: 0, FAILED: 0, CANCELLED: 0 };
  let [started, judged, successes, revisions] = [0, 0, 0, 0n];
  const rewards: number[] = [];
  let best: GroupStatistics['best'];
  for (const { id, success, reward: stored, attempt, revision, ...row } of siblings) {
    const status = row.status as Status;
    by[status] += 1;
    revisions += revision;
    if (attempt > 0n) started += 1;
    if (!isTerminal(status)) continue;
    if (status === 'FAILED' || (status === 'COMPLETED' && success !== null)) judged += 1;
    if (status === 'COMPLETED' && success !== null && isSet(success)) successes += 1;
    if (stored === null) continue;
    const reward = readReal(stored);
    rewards.push(reward);
    // Of equal rewards, the rollout with the lowest number wins.
    if (!Number.isNaN(reward) && (best === undefined || reward > best.reward)) best = { rolloutId: id, reward };
  }
  const statistics = {
    pending: BigInt(by.PENDING),
    started: BigInt(started),
    live: BigInt(by.INITIALIZING + by.RUNNING),
    completed: BigInt(by.COMPLETED),
    failed: BigInt(by.FAILED),
    cancelled: BigInt(by.CANCELLED),
    judged: BigInt(judged),
    successes: BigInt(successes),
    rewards: rewardStatistics(rewards),
    best,
  };
  return { statistics, revisions };
}
