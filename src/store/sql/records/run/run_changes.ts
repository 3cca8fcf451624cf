import { type RawBuilder, type SqlBool, sql } from 'kysely';
import { TERMINAL_STATUSES } from '../../../../domain/lifecycle.ts';
import type { Group, Rollout } from '../../../../domain/rollout.ts';
import type { Run, Stage } from '../../../../domain/run.ts';
import type { Page } from '../../../contract/request.ts';
import type { ChangeCursor, ChangedIn, ChangedPage, Horizon, RunChangesRead } from '../../../contract/run.ts';
import { readHorizon } from '../../kit/changes.ts';
import type { Engine } from '../../kit/engine.ts';
import { type ReadScope, scopeOf } from '../../kit/transaction.ts';
import { readGroups, selectGroups } from '../group/rows.ts';
import { IS_LIVE, readRollout, selectPage } from '../rollout/rows.ts';
import { readStage, selectStages } from '../stage/rows.ts';
import { findRun } from './rows.ts';
import { tallyRuns } from './tallies.ts';

/**
 * M5: the horizon must be read first. Later reads see everything that was committed by then, and the next call finds
 * the rest, however late it commits.
 */
export async function readRunChanges(
  scope: ReadScope,
  runId: string,
  asked: Horizon | undefined,
  allStages: boolean,
): Promise<RunChangesRead | undefined> {
  const horizon = await readHorizon(scope.engine);
  const run = await findRun(scope, { id: runId }, 'BASIC');
  if (run === undefined) return undefined;
  const since = asked?.era === horizon.era ? asked : undefined;
  const where = { since, allStages: allStages || asked !== undefined };
  const [stages, tallies] = await Promise.all([readStages(scope, run, where), tallyRuns(scope, [run.key])]);
  const tally = tallies.get(run.key);
  if (tally === undefined) throw new Error('a requested run has no tally');
  return { run, stages, tally, horizon, since };
}

async function readStages(
  { engine, db, namespace }: ReadScope,
  run: Run,
  { since, allStages }: ChangedIn,
): Promise<Stage[]> {
  let query = selectStages(db, 'BASIC').where('s.run', '=', run.key).where('s.namespace', '=', namespace);
  if (since !== undefined) query = query.where((eb) => eb.or(engine.changes.since(sql.ref('s.mark'), since)));
  else if (!allStages) query = query.where('s.status', 'not in', TERMINAL_STATUSES);
  const rows = await query.orderBy('s.key').execute();
  return rows.map(readStage);
}

export async function readChangedGroups(
  { engine, namespace }: ReadScope,
  run: bigint,
  where: ChangedIn,
  page: Page<ChangeCursor>,
): Promise<ChangedPage<Group>> {
  const byIndex = engine.byIndex();
  const { keys, next } = await findPage(scopeOf(byIndex, namespace), 'groups', run, where, page);
  return { rows: await groupsOf(byIndex, keys), next };
}

export async function readChangedRollouts(
  { engine, namespace }: ReadScope,
  run: bigint,
  where: ChangedIn,
  page: Page<ChangeCursor>,
): Promise<ChangedPage<Rollout> & { readonly groups: readonly Group[] }> {
  const byIndex = engine.byIndex();
  const { keys, groups, next } = await findPage(scopeOf(byIndex, namespace), 'rollouts', run, where, page);
  return {
    rows: await rolloutsOf(byIndex, keys),
    groups: where.since === undefined ? [] : await groupsOf(byIndex, [...new Set(groups)]),
    next,
  };
}

async function groupsOf(engine: Engine, keys: readonly bigint[]): Promise<Group[]> {
  if (keys.length === 0) return [];
  const query = selectGroups(engine.db, 'BASIC').where(engine.sql.among(sql.ref('g.key'), keys));
  return readGroups(engine, engine.db, query.orderBy('g.key'));
}

async function rolloutsOf(engine: Engine, keys: readonly bigint[]): Promise<Rollout[]> {
  if (keys.length === 0) return [];
  const wanted = engine.db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where(engine.sql.among(sql.ref('r.key'), keys));
  const page = wanted.orderBy('r.key').limit(keys.length);
  return (await selectPage(engine, engine.db, 'BASIC', page).execute()).map(readRollout);
}

/** Orders in which an index holds the rows of a run. A row keeps its position in the orders of a snapshot. */
const BY_MARK = ['mark', 'key'] as const;
const SNAPSHOT_ORDERS = { groups: ['key'], rollouts: ['stage', 'group_number', 'number'] } as const;

interface FoundPage {
  readonly keys: bigint[];
  /** For rollouts: keys of their groups. */
  readonly groups: bigint[];
  readonly next: ChangeCursor | undefined;
}

/**
 * Finds the keys of a page in the order of one index, after the cursor and before any join. All pages together read
 * each row once.
 */
async function findPage(
  { engine, db, namespace }: ReadScope,
  table: 'groups' | 'rollouts',
  run: bigint,
  { since, allStages }: ChangedIn,
  { after, limit }: Page<ChangeCursor>,
): Promise<FoundPage> {
  const order: readonly string[] = since === undefined ? SNAPSHOT_ORDERS[table] : BY_MARK;
  const conditions =
    since === undefined
      ? [allStages ? EVERY_ROW : ofOpenStage(engine)]
      : engine.changes.since(sql.ref('c.mark'), since);
  const columns = new Set(['key', ...(table === 'rollouts' ? ['group_key'] : []), ...order]);
  const list = (names: Iterable<string>) => sql.join([...names].map((name) => sql.ref(`c.${name}`)));
  const cursor = sql.join(order.map((_, i) => sql`cast(${after?.[i] ?? -1n} as bigint)`));
  const end = (rows: string) =>
    sql`order by ${sql.join(order.map((name) => sql.ref(`${rows}.${name}`)))} limit ${sql.lit(limit)}`;
  const parts = conditions.map(
    (condition) => sql`select * from (select ${list(columns)} from ${engine.sql.table(table)} as c
      where c.run = ${run} and c.namespace = ${namespace} and ${condition} and (${list(order)}) > (${cursor}) ${end('c')}) as p`,
  );
  const { rows } = await sql<
    Record<string, bigint>
  >`select * from (${sql.join(parts, sql` union all `)}) as f ${end('f')}`.execute(db);
  const last = rows.at(-1);
  return {
    keys: rows.map(({ key }) => key!),
    groups: rows.flatMap(({ group_key }) => group_key ?? []),
    next: last === undefined || rows.length < limit ? undefined : order.map((name) => last[name]!),
  };
}

const EVERY_ROW = sql<SqlBool>`1 = 1`;

/** A subquery for each row, so that planners do not begin with the stages and sort their rows. */
function ofOpenStage(engine: Engine): RawBuilder<SqlBool> {
  const terminal = sql.join(TERMINAL_STATUSES.map((status) => sql.lit(status)));
  return sql<SqlBool>`(select s.status from ${engine.sql.table('stages')} as s where s.key = c.stage)
    not in (${terminal})`;
}

/** Returns the live rollouts of a run, by key. Appends change their values without changing the mark of their rows. */
export async function readLiveRollouts(
  scope: ReadScope,
  run: bigint,
  { after = -1n, limit }: Page<bigint>,
): Promise<Rollout[]> {
  const keys = (await liveKeys(scope, run)).filter((key) => key > after).slice(0, limit);
  return rolloutsOf(scope.engine.byIndex(), keys);
}

/** Has no order or limit, so that planners do not prefer the index by key to the index of live rollouts. */
async function liveKeys({ db, namespace }: ReadScope, run: bigint): Promise<bigint[]> {
  const rows = await db
    .selectFrom('rollouts as r')
    .select('r.key')
    .where('r.run', '=', run)
    .where('r.namespace', '=', namespace)
    .where(IS_LIVE)
    .execute();
  return rows.map(({ key }) => key).sort((a, b) => Number(a - b));
}
