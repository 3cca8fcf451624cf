import type { Engine } from '../support/database.ts';
import type { OutsideSql } from './sql.ts';

/** Creates nested branches as they could exist before there was a limit: too many to create them by calls. */
export interface DeepTree {
  /** The id of the trajectory at a depth from 1 on. */
  idOf(depth: number): string;
}

/**
 * Writes a chain of branches below a root that owns exactly step 0. The branch of depth d starts after step d - 1 and
 * owns step d. That step is a copy of step 0 with the reward `reward`, an SQL expression of `i` (d). Ids are unique
 * within a namespace, for one chain.
 */
export async function makeDeepTree(
  engine: Engine,
  sql: OutsideSql,
  root: { readonly id: string; readonly ref: { readonly key: bigint } },
  depth: number,
  reward = 'i',
): Promise<DeepTree> {
  const first = (await takeKeys(engine, sql, depth)) - BigInt(depth);
  const digits = engine === 'sqlite' ? "printf('%012x', i)" : "lpad(to_hex(i), 12, '0')";
  const id = `'00000000-0000-4000-8000-' || ${digits}`;
  const uuid = engine === 'sqlite' ? id : `(${id})::uuid`;
  const { key } = root.ref;
  const depths = `depths (i) as (select 1 union all select i + 1 from depths where i < ${depth})`;
  // The copied row is read once, whatever the plan of the rest.
  const rowOf = `r as materialized (select * from trajectories where key = ${key})`;
  const stepOf = `s as materialized (select * from steps where tree = ${key} and trajectory = ${key} and step_number = 0)`;
  await sql.rows(`insert into trajectories (tree, key, namespace, id, uid, parent, branch_point, name, task_id, labels, metadata_json, metrics,
      status, status_message, writer_id, writer_epoch, next_step_number, reward_sum, byte_sum, hidden, create_time, update_time, depth)
    with recursive ${depths}, ${rowOf}, ${stepOf}
    select r.tree, ${first} + i, r.namespace, ${uuid}, ${uuid}, case i when 1 then r.key else ${first} + i - 1 end, i - 1, 'depth ' || i,
      r.task_id, r.labels, r.metadata_json, r.metrics, r.status, r.status_message, '', 0, i + 1, 0, (i + 1) * s.byte_sum, r.hidden,
      r.create_time, r.update_time, i
    from depths cross join r cross join s`);
  await sql.rows(`insert into steps (tree, trajectory, step_number, namespace, reward, terminated, truncated, writer_epoch, reward_sum, byte_sum,
      commit_time, content_digest, metrics, actions, observations, info_json, metadata_json)
    with recursive ${depths}, ${stepOf}
    select s.tree, ${first} + i, i, s.namespace, ${reward}, s.terminated, s.truncated, 0, 0, (i + 1) * s.byte_sum,
      s.commit_time, s.content_digest, s.metrics, s.actions, s.observations, s.info_json, s.metadata_json
    from depths cross join s`);
  // Plans that the store cached while the tables were nearly empty would stay in use until Postgres gathers statistics
  // by itself.
  if (engine === 'postgres') for (const table of ['trajectories', 'steps']) await sql.rows(`analyze ${table}`);
  return { idOf: (of) => `00000000-0000-4000-8000-${of.toString(16).padStart(12, '0')}` };
}

/** Reserves this many row keys, which the store will not use. Returns the last. */
async function takeKeys(engine: Engine, sql: OutsideSql, count: number): Promise<bigint> {
  const [row] = await sql.rows(
    engine === 'sqlite'
      ? `select seq + ${count} as last from sqlite_sequence where name = 'trajectories'`
      : `select setval('trajectory_keys', nextval('trajectory_keys') + ${count}) as last`,
  );
  return BigInt(String(row?.last));
}

/** Counts the iterations of the event loop meanwhile. */
export async function turnsDuring(work: () => Promise<unknown>): Promise<number> {
  let iterations = 0;
  let counting = true;
  const count = () => {
    iterations += 1;
    if (counting) setImmediate(count);
  };
  setImmediate(count);
  await work();
  counting = false;
  return iterations;
}
