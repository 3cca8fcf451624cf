import { sql } from 'kysely';
import type { StorageCheck, StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Tables } from '../../kit/tables.ts';
import { MOST_FAULTS } from './part.ts';

/** A column with row keys of another table. Null and 0 refer to nothing. */
interface Relation {
  readonly table: keyof Tables;
  readonly column: string;
  readonly target: keyof Tables;
  /** The first column of the table's key, in whose order rows are read. */
  readonly order: string;
}

const relation = (table: keyof Tables, column: string, target: keyof Tables, order = 'key'): Relation => {
  return { table, column, target, order };
};

/**
 * Trajectories of runs and attempts, and validators of validations, are not among them: they can be removed before what
 * refers to them.
 */
export const RELATIONS: readonly Relation[] = [
  relation('trajectories', 'run', 'runs'),
  relation('trajectories', 'experiment', 'experiments'),
  relation('runs', 'experiment', 'experiments'),
  relation('stages', 'run', 'runs'),
  relation('metric_series', 'run', 'runs'),
  relation('metric_series', 'stage', 'stages'),
  relation('metric_points', 'series', 'metric_series', 'series'),
  relation('validators', 'task', 'tasks'),
  relation('groups', 'run', 'runs'),
  relation('groups', 'stage', 'stages'),
  relation('rollouts', 'run', 'runs'),
  relation('rollouts', 'stage', 'stages'),
  relation('rollouts', 'group_key', 'groups'),
  relation('rollouts', 'task', 'tasks'),
  relation('attempts', 'rollout', 'rollouts', 'rollout'),
  relation('validations', 'rollout', 'rollouts', 'rollout'),
  relation('validation_overrides', 'rollout', 'rollouts', 'rollout'),
  relation('environments', 'run', 'runs'),
  relation('rollout_environments', 'rollout', 'rollouts', 'rollout'),
  relation('rollout_environments', 'environment', 'environments', 'rollout'),
  relation('rollout_cancellations', 'run', 'runs', 'run'),
  relation('rollout_cancellations', 'stage', 'stages', 'run'),
  relation('retention_policies', 'run', 'runs', 'run'),
  relation('retention_policies', 'experiment', 'experiments', 'experiment'),
];

/** Row keys of one statement. */
const WINDOW = 50_000n;

/** Yields the faults of each statement. */
export async function* checkRelations(
  engine: Engine,
): AsyncGenerator<() => Promise<readonly StorageFault[]>, void, undefined> {
  for (const each of RELATIONS) yield* windowed(engine, each, (after) => dangling(engine, each, after));
  for (const noun of NOUNS)
    yield* windowed(engine, { ...noun, order: 'key' }, (after) => wrongHistory(engine, noun, after));
  yield () => strayChunks(engine);
}

/** Yields a check for each window of rows. If the table cannot be read, the check fails. */
async function* windowed(
  engine: Engine,
  { table, order }: Pick<Relation, 'table' | 'order'>,
  check: (after: bigint) => Promise<readonly StorageFault[]>,
): AsyncGenerator<() => Promise<readonly StorageFault[]>, void, undefined> {
  try {
    const { rows } = await sql<{ last: bigint | null }>`
      select max(${sql.ref(order)}) as last from ${engine.sql.table(table)}`.execute(engine.db);
    for (let after = 0n; after < (rows[0]?.last ?? 0n); after += WINDOW) yield () => check(after);
  } catch (error) {
    yield () => Promise.reject(error);
  }
}

async function dangling(engine: Engine, { table, column, target, order }: Relation, after: bigint) {
  const [key, value] = [sql.ref(`c.${order}`), sql.ref(`c.${column}`)];
  const { rows } = await sql<{ namespace: string; key: bigint; value: bigint }>`
    select c.namespace, ${key} as key, ${value} as value from ${engine.sql.table(table)} as c
    where ${key} > ${after} and ${key} <= ${after + WINDOW} and ${value} <> 0
      and not exists (select 1 from ${engine.sql.table(target)} as p
        where p.key = ${value} and p.namespace = c.namespace)
    limit ${sql.lit(MOST_FAULTS)}`.execute(engine.db);
  return rows.map((row): StorageFault => {
    const message = `table ${table}, row with ${order} ${row.key}: ${column} is ${row.value}, which the table ${target} does not have`;
    return { check: 'ROWS', namespace: row.namespace, message };
  });
}

/** Tables of resources whose statuses have a history, and the column with the run. */
const NOUNS = [
  { table: 'runs', noun: 'RUN', run: 'key' },
  { table: 'stages', noun: 'STAGE', run: 'run' },
  { table: 'rollouts', noun: 'ROLLOUT', run: 'run' },
  { table: 'environments', noun: 'ENVIRONMENT', run: 'run' },
] as const;

/** The history of a deleted run is removed before its row. */
async function wrongHistory(engine: Engine, { table, noun, run }: (typeof NOUNS)[number], after: bigint) {
  const changes = engine.sql.table('status_changes');
  const entry = sql`from ${changes} as c
    where c.tree = r.key and c.entity_kind = ${noun} and c.entity = e.key order by c.ordinal desc limit 1`;
  const { rows } = await sql<{
    namespace: string;
    id: string;
    status: string;
    last_status: string | null;
    n: bigint;
    entries: bigint | null;
  }>`
    select * from (select e.namespace, cast(e.id as text) as id, e.status, e.status_changes as n,
        (select c.new_status ${entry}) as last_status, (select c.ordinal + 1 ${entry}) as entries
      from ${engine.sql.table(table)} as e inner join ${engine.sql.table('runs')} as r on r.key = ${sql.ref(`e.${run}`)}
      where e.key > ${after} and e.key <= ${after + WINDOW} and not r.hidden) as h
    where h.last_status is null or h.last_status <> h.status or h.entries <> h.n
    limit ${sql.lit(MOST_FAULTS)}`.execute(engine.db);
  return rows.map(({ namespace, id, status, last_status, n, entries }): StorageFault => {
    const message = `${noun.toLowerCase()} ${id}: its status is ${status} after ${n} changes, and its history ends with ${last_status ?? 'nothing'} after ${entries ?? 0}`;
    return { check: 'HISTORY', namespace, message };
  });
}

/** Chunks of uploads that neither a state nor an unfinished upload has. */
async function strayChunks(engine: Engine): Promise<readonly StorageFault[]> {
  const { rows } = await sql<{ namespace: string; upload: string }>`
    select c.namespace, cast(c.upload as text) as upload from ${engine.sql.table('state_chunks')} as c
    where c.upload not in (select s.upload from ${engine.sql.table('states')} as s where s.upload is not null)
      and c.upload not in (select u.upload from ${engine.sql.table('state_uploads')} as u) and c.ordinal = 0
    limit ${sql.lit(MOST_FAULTS)}`.execute(engine.db);
  return rows.map(({ namespace, upload }) => {
    return {
      check: 'ROWS' as const satisfies StorageCheck,
      namespace,
      message: `upload ${upload}: no state has its chunks`,
    };
  });
}
