import { DatabaseSync, type StatementSync } from 'node:sqlite';
import pg from 'pg';

/**
 * Hand-written SQL for rollouts: what a user with one question would write against the schema. It runs in the
 * database's own driver, and rows are not converted.
 */
export interface RolloutSql {
  /**
   * Inserts rollouts of one hundred tasks in groups of 8 in the ten existing stages: all PENDING in the first stage, or
   * all COMPLETED.
   */
  fill(count: number, as: 'queued' | 'done'): Promise<void>;
  /** Makes claimed rollouts PENDING again. */
  requeue(): Promise<void>;
  /** Reads a page of 50 rollouts in order, and 50 groups with their statistics. Returns the number of rows. */
  list(): Promise<number>;
  /** Reads all groups and rollouts of the run in order, with the columns of a page. Returns the number of rows. */
  snapshot(): Promise<number>;
  /**
   * Reads counters of stages and groups, and live rollouts with the ends of their trajectories. Returns the number of
   * rows.
   */
  progress(): Promise<number>;
  /**
   * Summarizes rollouts by task and model: counts, statistics of rewards, tokens, durations and trials. Returns the
   * number of rows.
   */
  summarize(): Promise<number>;
  /** Claims in the simplest way: locks and updates one row, and commits. Returns false if there was no row. */
  claim(): Promise<boolean>;
  close(): Promise<void>;
}

const SIBLINGS = 8;
const STAGES = 10;
const TASKS = 100;

/** SQL that differs between the engines. */
interface Dialect {
  /** Returns the beginning of a statement with rows `n(i)`, from 0 up to `count - 1`. */
  numbers(count: number): string;
  readonly uuid: string;
  readonly yes: string;
  readonly no: string;
  /** Returns a time `seconds` ago. */
  ago(seconds: string): string;
  readonly model: string;
  readonly tokens: string;
  readonly seconds: string;
  readonly median: string;
  readonly std: string;
}

const POSTGRES: Dialect = {
  numbers: (count) => `with n as (select i from generate_series(0::bigint, ${count - 1}) i)`,
  uuid: 'gen_random_uuid()',
  yes: 'true',
  no: 'false',
  ago: (seconds) => `now() - make_interval(secs => ${seconds})`,
  model: `r.labels::json ->> 'model'`,
  tokens: `(r.metrics::json ->> 'tokens')::float8`,
  seconds: 'extract(epoch from r.end_time - r.start_time)',
  median: 'percentile_cont(0.5) within group (order by q.reward)',
  std: 'stddev_samp(q.reward)',
};

const SQLITE: Dialect = {
  numbers: (count) => `with recursive n(i) as (select 0 union all select i + 1 from n where i < ${count - 1})`,
  uuid: `lower(hex(randomblob(4)) || '-0000-7000-8000-' || hex(randomblob(6)))`,
  yes: '1',
  no: '0',
  ago: (seconds) => `strftime('%Y-%m-%dT%H:%M:%f', 'now', '-' || (${seconds}) || ' seconds') || '000Z'`,
  model: `r.labels ->> '$.model'`,
  tokens: `r.metrics ->> '$.tokens'`,
  seconds: '(julianday(r.end_time) - julianday(r.start_time)) * 86400',
  // The middle rewards of the group, as numbered by the window below.
  median: 'avg(case when q.place in ((q.size + 1) / 2, (q.size + 2) / 2) then q.reward end)',
  std: 'sqrt(max(0, (sum(q.reward * q.reward) - sum(q.reward) * sum(q.reward) / count(q.reward)) / (count(q.reward) - 1)))',
};

const RUN = '(select min(key) from runs)';

function fillGroups(d: Dialect, count: number, as: 'queued' | 'done'): string {
  const groups = Math.ceil(count / SIBLINGS);
  const stage = as === 'queued' ? '0' : `i * ${STAGES} / ${groups}`;
  const [terminal, turns] = as === 'queued' ? [0, 0] : [SIBLINGS, SIBLINGS * 5];
  return `${d.numbers(groups)} insert into groups (key, namespace, id, run, stage, number, batch, on_success, labels, metrics, metadata_json,
      rollouts, terminal_rollouts, tried_rollouts, terminal_turns, timed_turns, turn_seconds, create_time, update_time, revision, mark)
    select 1000000 + i, 'default', ${d.uuid}, ${RUN}, s.key, i, null, 'CONTINUE', '{}', '{}', '', ${SIBLINGS}, ${terminal}, ${terminal}, ${turns}, ${turns}, ${turns} * 1.5,
      ${d.ago('60')}, ${d.ago('60')}, 1, 1 from n join stages s on s.number = ${stage}`;
}

function fillRollouts(d: Dialect, count: number, as: 'queued' | 'done'): string {
  const done = as === 'done';
  const reward = '(i * 7919) % 1000 / 10.0';
  const success = `case when (i * 31) % 100 < 40 then ${d.yes} else ${d.no} end`;
  const ended = (value: string, otherwise: string) => (done ? value : otherwise);
  return `${d.numbers(count)} insert into rollouts (key, namespace, id, run, stage, group_key, group_number, number, task, labels, input_json, priority,
      max_turns, max_attempts, start_trajectory, start_step, model_uri, status, status_message, phase, attempt, tree, trajectory, worker_id, claimer, lease_ms,
      lease_end_time, result, summary_json, result_success, validation_passed, override, success, reward, turns, metrics, timings, metadata_json,
      claimable_time, start_time, end_time, create_time, update_time, status_changes, revision, mark)
    select 10000000 + i, 'default', ${d.uuid}, ${RUN}, g.stage, g.key, g.number, i % ${SIBLINGS},
      (select min(key) from tasks) + g.number % ${TASKS}, '{"model":"m' || i % 4 || '","trial":"' || i % ${SIBLINGS} || '"}', '{"seed":' || i || '}', 0,
      null, 3, null, null, 'file:///checkpoints/7', ${ended(`'COMPLETED'`, `'PENDING'`)}, '', '', ${ended('1', '0')}, null, null, ${ended(`'worker'`, `''`)}, '', 0,
      null, '', '', ${ended(success, 'null')}, null, null, ${ended(success, 'null')}, ${ended(reward, 'null')}, ${ended('5', '0')},
      ${ended(`'{"tokens":' || (500 + i % 1000) || '}'`, `'{}'`)}, '{}', '',
      ${d.ago('60')}, ${ended(d.ago('30 + i % 20'), 'null')}, ${ended(d.ago('10'), 'null')}, ${d.ago('60')}, ${d.ago('10')}, 1, 1, 1
    from n join groups g on g.key = 1000000 + i / ${SIBLINGS}`;
}

const STAGE = 'g.stage = (select min(key) from stages)';

/** The columns of a list: all except those with JSON of unbounded size. */
const LIST = [
  `select r.key, r.id, r.group_number, r.number, r.labels, r.priority, r.max_turns, r.max_attempts, r.model_uri, r.status, r.status_message, r.phase,
      r.attempt, r.worker_id, r.lease_end_time, r.result, r.validation_passed, r.override, r.success, r.reward, r.turns, r.metrics, r.timings, r.start_time, r.end_time,
      r.create_time, r.update_time, r.revision, s.id as stage_id, g.id as group_id, k.id as task_id, t.id as trajectory_id, t.next_step_number, t.reward_sum
    from (select * from rollouts where run = ${RUN} order by stage, group_number, number limit 50) r join stages s on s.key = r.stage
    join groups g on g.key = r.group_key left join tasks k on k.key = r.task left join trajectories t on t.tree = r.tree and t.key = r.trajectory
    order by r.stage, r.group_number, r.number`,
  `select g.key, g.id, g.number, g.batch, g.on_success, g.labels, g.metrics, g.create_time, g.update_time, g.revision from groups g
    where ${STAGE} order by g.number limit 50`,
  `select r.group_key, r.status, r.success, r.reward, r.id, r.number from rollouts r
    where r.group_key in (select key from groups where stage = (select min(key) from stages) order by number limit 50)`,
];

/** All rollouts and groups that a watcher of the run receives first. */
const SNAPSHOT = LIST.slice(0, 2).map((text) => text.replace(' limit 50', '').replace(STAGE, `g.run = ${RUN}`));

const PROGRESS = [
  `select kind, status, count(*) as made, sum(completed_substeps) as substeps, sum(timed_substeps) as timed, sum(substep_seconds) as seconds
    from stages where run = ${RUN} group by kind, status`,
  `select id, kind, number, status, phase, completed_substeps, total_substeps from stages
    where run = ${RUN} and status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED')`,
  `select stage, sum(rollouts) as made, sum(terminal_rollouts) as terminal, sum(terminal_turns) as turns, sum(timed_turns) as timed, sum(turn_seconds) as seconds
    from groups where run = ${RUN} group by stage`,
  `select r.stage, t.branch_point, t.next_step_number from rollouts r join trajectories t on t.tree = r.tree and t.key = r.trajectory
    where r.run = ${RUN} and r.status in ('INITIALIZING', 'RUNNING')`,
];

/** Statistics by task and model, and their trials. */
function summary(d: Dialect, windowed: boolean): string {
  const window = windowed
    ? `, row_number() over (partition by r.task, ${d.model} order by r.reward) as place, count(r.reward) over (partition by r.task, ${d.model}) as size`
    : '';
  return `select k.id, q.model, count(*) as rollouts, count(case when q.status = 'PENDING' then 1 end) as pending,
      count(case when q.status in ('INITIALIZING', 'RUNNING') then 1 end) as live, count(case when q.status = 'COMPLETED' then 1 end) as completed,
      count(case when q.status = 'FAILED' then 1 end) as failed, count(case when q.status = 'CANCELLED' then 1 end) as cancelled,
      count(case when q.status = 'FAILED' or (q.status = 'COMPLETED' and q.success is not null) then 1 end) as judged,
      count(case when q.status = 'COMPLETED' and q.success then 1 end) as successes, count(q.reward) as rewards, avg(q.reward) as mean, min(q.reward) as least,
      max(q.reward) as most, ${d.std} as std, ${d.median} as median, sum(q.turns) as turns, avg(q.seconds) as seconds, sum(q.tokens) as tokens,
      count(case when q.status = 'FAILED' or q.success is not null then 1 end) as trials
    from (select r.task, ${d.model} as model, r.status, r.success, r.reward, r.turns, ${d.seconds} as seconds, ${d.tokens} as tokens ${window}
      from rollouts r join runs u on u.key = r.run where r.run = ${RUN} and not u.hidden) q
    join tasks k on k.key = q.task group by k.id, q.model order by k.id, q.model`;
}

const NEXT = (
  lock: string,
) => `select key from rollouts where stage = (select min(key) from stages) and status = 'PENDING'
  order by priority desc, key limit 1 ${lock}`;

const REQUEUE = `update rollouts set status = 'PENDING', worker_id = '', lease_ms = 0, lease_end_time = null where status in ('INITIALIZING', 'RUNNING')`;

export async function openRolloutSql(database: string): Promise<RolloutSql> {
  return database.startsWith('sqlite:') ? openSqlite(database.slice('sqlite:'.length)) : openPostgres(database);
}

function openSqlite(path: string): RolloutSql {
  const database = new DatabaseSync(path, { timeout: 10_000 });
  database.exec(`
    pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -65536; pragma temp_store = memory;
    pragma wal_autocheckpoint = 4000;
  `);
  const prepared = new Map<string, StatementSync>();
  const statement = (text: string) => {
    const known = prepared.get(text) ?? database.prepare(text);
    prepared.set(text, known);
    return known;
  };
  const rows = async (texts: readonly string[]) => texts.reduce((sum, text) => sum + statement(text).all().length, 0);
  return {
    async fill(count, as) {
      database.exec('begin');
      database.exec(fillGroups(SQLITE, count, as));
      database.exec(fillRollouts(SQLITE, count, as));
      // No ANALYZE, because the service runs none.
      database.exec('commit; pragma wal_checkpoint(truncate)');
    },
    async requeue() {
      database.exec(REQUEUE);
      database.exec('pragma wal_checkpoint(truncate)');
    },
    list: () => rows(LIST),
    snapshot: () => rows(SNAPSHOT),
    progress: () => rows(PROGRESS),
    summarize: () => rows([summary(SQLITE, true)]),
    async claim() {
      database.exec('begin immediate');
      const next = statement(NEXT('')).get();
      if (next !== undefined) {
        statement(`update rollouts set status = 'INITIALIZING', attempt = attempt + 1, worker_id = 'w', lease_ms = 60000,
          lease_end_time = ${SQLITE.ago('-60')} where key = ?`).run(next.key!);
      }
      database.exec('commit');
      return next !== undefined;
    },
    async close() {
      database.close();
    },
  };
}

async function openPostgres(url: string): Promise<RolloutSql> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query('set search_path = anabranch');
  const rows = async (texts: readonly string[]) => {
    let all = 0;
    for (const [i, text] of texts.entries())
      all += (await client.query({ name: `${texts.length}-${i}`, text })).rows.length;
    return all;
  };
  return {
    async fill(count, as) {
      await client.query(fillGroups(POSTGRES, count, as));
      await client.query(fillRollouts(POSTGRES, count, as));
      await client.query('vacuum analyze groups');
      await client.query('vacuum analyze rollouts');
    },
    async requeue() {
      await client.query(REQUEUE);
      await client.query('vacuum rollouts');
    },
    list: () => rows(LIST),
    snapshot: () => rows(SNAPSHOT),
    progress: () => rows(PROGRESS),
    summarize: () => rows([summary(POSTGRES, false)]),
    async claim() {
      const text = `update rollouts set status = 'INITIALIZING', attempt = attempt + 1, worker_id = 'w', lease_ms = 60000,
        lease_end_time = now() + interval '60 s' where key = (${NEXT('for update skip locked')}) returning key`;
      return (await client.query({ name: 'claim', text })).rows.length > 0;
    },
    close: () => client.end(),
  };
}
