import { DatabaseSync, type StatementSync } from 'node:sqlite';
import pg from 'pg';
import { CopyQuery, encodeCopy } from '../src/store/postgres/copy.ts';
import { METRIC_POINTS } from '../src/store/sql/kit/tables/runs.ts';

/**
 * Hand-written SQL for the tables of runs: what a user with one question would write against the schema. It runs in the
 * database's own driver, and rows are not converted.
 */
export interface RunSql {
  /**
   * Reads a page of 50 runs, newest first, with what a list shows and what progress needs. Returns the number of rows.
   */
  list(): Promise<number>;
  /** Reads the rows of a run's tree. Returns their number. */
  tree(runId: string): Promise<number>;
  /**
   * Reads the smallest and the largest value of each bucket of all series, from step 0. Returns the number of
   * buckets.
   */
  aggregate(pointsEach: number, buckets: number): Promise<number>;
  /** Inserts points in one commit. */
  insertPoints(points: readonly BarePoint[]): Promise<void>;
  /** Replaces the points of every series by this many points, from step 0. */
  fillSeries(pointsEach: number): Promise<void>;
  /** Inserts this many stages for every run. All but the last two are COMPLETED. */
  fillStages(each: number): Promise<void>;
}

export interface BarePoint {
  readonly series: number;
  readonly metricStep: number;
  readonly value: number;
}

/** Returns the placeholder of the n-th bound value. */
type Placeholder = (n: number) => string;

/** The BASIC view: all columns except those with JSON of unbounded size. */
const RUN = `r.key, r.id, r.number, r.name, r.description, r.labels, r.plan, r.branch_point, r.status, r.status_message, r.phase, r.metrics,
  r.heartbeat_timeout_ms, r.fail_when_stale, r.heartbeat_time, r.stale_time, r.start_time, r.end_time, r.create_time, r.update_time, r.revision`;

const NEWEST = `from runs where namespace = 'default' and not hidden order by key desc limit 50`;

const LIST = [
  `select ${RUN}, e.id as experiment_id, e.name as experiment_name, o.id as tree_id, p.id as parent_id, t.id as main_id, t.next_step_number, t.reward_sum
    from (select * ${NEWEST}) r join experiments e on e.key = r.experiment join runs o on o.key = r.tree left join runs p on p.key = r.parent
    left join trajectories t on t.tree = r.main_tree and t.key = r.main_trajectory and not t.hidden order by r.key desc`,
  `select run, kind, status, count(*) as made, sum(completed_substeps) as substeps, sum(timed_substeps) as timed, sum(substep_seconds) as seconds
    from stages where run in (select key ${NEWEST}) group by run, kind, status`,
  `select run, id, kind, number, status, phase, completed_substeps, total_substeps from stages
    where run in (select key ${NEWEST}) and status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED')`,
];

const tree = ($: Placeholder) =>
  `select ${RUN}, r.parent, r.main_tree, r.main_trajectory from runs r where r.tree = (select tree from runs where namespace = 'default' and id = ${$(1)}) and not r.hidden order by r.key`;

const aggregate = ($: Placeholder, series: readonly unknown[]) =>
  `select series, metric_step * ${$(1)} / ${$(2)} as bucket, min(value) as smallest, max(value) as largest
    from metric_points where series in (${series.join(', ')}) group by 1, 2`;

const SERIES = 'select key from metric_series order by key';

/** A bounded sequence of varying numbers. */
const VALUE = '((i * 7919) % 104729) / 104729.0';

const fillStages = (ordinals: string, id: string, time: string) =>
  `insert into stages (key, namespace, id, run, kind, number, status, status_message, phase, model_uri, model_checkpoint_uri, metrics, metadata_json,
      completed_substeps, total_substeps, timings, timed_substeps, substep_seconds, create_time, update_time, status_changes, revision, mark)
    select 1000000 + r.key * 100 + i, 'default', ${id}, r.key, 'TRAIN_STEP', i, case when i > ${ordinals} - 2 then 'RUNNING' else 'COMPLETED' end, '', 'training', '', '', '{}', '',
      case when i > ${ordinals} - 2 then 1 else 4 end, 4, '{}', 2, 3.5, ${time}, ${time}, 1, 1, 1`;

export async function openRunSql(database: string): Promise<RunSql> {
  return database.startsWith('sqlite:') ? openSqlite(database.slice('sqlite:'.length)) : openPostgres(database);
}

function openSqlite(path: string): RunSql {
  const database = new DatabaseSync(path);
  database.exec(`
    pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -65536; pragma temp_store = memory;
    pragma wal_autocheckpoint = 4000;
  `);
  let series: unknown[] | undefined;
  const prepared = new Map<string, StatementSync>();
  const statement = (text: string) => {
    const known = prepared.get(text) ?? database.prepare(text);
    prepared.set(text, known);
    return known;
  };
  const $: Placeholder = (n) => `?${n}`;
  const count = (to: number) => `with recursive n(i) as (select 0 union all select i + 1 from n where i < ${to - 1})`;
  return {
    async list() {
      return LIST.reduce((rows, text) => rows + statement(text).all().length, 0);
    },
    async tree(runId) {
      return statement(tree($)).all(runId).length;
    },
    async aggregate(pointsEach, buckets) {
      series ??= statement(SERIES)
        .all()
        .map(({ key }) => key);
      return statement(aggregate($, series)).all(BigInt(buckets), BigInt(pointsEach)).length;
    },
    async insertPoints(points) {
      const insert = statement(
        `insert into metric_points (series, metric_step, namespace, value) values (?, ?, 'default', ?)`,
      );
      database.exec('begin immediate');
      for (const { series, metricStep, value } of points) insert.run(BigInt(series), BigInt(metricStep), value);
      database.exec('commit');
    },
    async fillSeries(pointsEach) {
      database.exec('delete from metric_points');
      for (const { key } of statement(SERIES).all())
        database.exec(`${count(pointsEach)} insert into metric_points (series, metric_step, namespace, value)
          select ${key}, i, 'default', ${VALUE} from n`);
      database.exec('pragma wal_checkpoint(truncate)');
    },
    async fillStages(each) {
      const uuid = `lower(hex(randomblob(4)) || '-0000-7000-8000-' || hex(randomblob(6)))`;
      database.exec(`${count(each + 1)} ${fillStages(`${each}`, uuid, 'r.create_time')} from runs r, n where i > 0`);
      database.exec('analyze; pragma wal_checkpoint(truncate)');
    },
  };
}

async function openPostgres(url: string): Promise<RunSql> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query('set search_path = anabranch');
  let series: unknown[] | undefined;
  const names = new Map<string, string>();
  const rows = async (text: string, values: readonly unknown[] = []) => {
    const name = names.get(text) ?? `run-sql-${names.size}`;
    names.set(text, name);
    return (await client.query({ name, text, values: [...values] })).rows.length;
  };
  const $: Placeholder = (n) => `$${n}::bigint`;
  return {
    async list() {
      let all = 0;
      for (const text of LIST) all += await rows(text);
      return all;
    },
    tree: (runId) =>
      rows(
        tree((n) => `$${n}`),
        [runId],
      ),
    async aggregate(pointsEach, buckets) {
      series ??= (await client.query<{ key: string }>(SERIES)).rows.map(({ key }) => key);
      return rows(aggregate($, series), [buckets, pointsEach]);
    },
    async insertPoints(points) {
      const made = points.map(({ series, metricStep, value }) => {
        return { series: BigInt(series), metric_step: BigInt(metricStep), namespace: 'default', value };
      });
      const bytes = encodeCopy(METRIC_POINTS.order, made);
      const names = METRIC_POINTS.order.map(({ name }) => name).join(', ');
      const text = `copy metric_points (${names}) from stdin (format binary)`;
      await new Promise<void>((resolve, reject) => {
        client.query(new CopyQuery(text, bytes, (error) => (error ? reject(error) : resolve())));
      });
    },
    async fillSeries(pointsEach) {
      await client.query('truncate metric_points');
      await client.query(`insert into metric_points (series, metric_step, namespace, value)
        select key, i, 'default', ${VALUE} from metric_series, generate_series(0::bigint, ${pointsEach - 1}) i`);
      await client.query('vacuum analyze metric_points');
    },
    async fillStages(each) {
      await client.query(
        `${fillStages(`${each}`, 'gen_random_uuid()', 'r.create_time')} from runs r, generate_series(1, ${each}) i`,
      );
      await client.query('vacuum analyze stages, runs');
    },
  };
}
