import { NO_SUMS } from '../../src/store/sql/kit/running_sums.ts';
import type { SegmentRow } from '../../src/store/sql/kit/tables/steps.ts';
import { SEGMENTS } from '../../src/store/sql/kit/tables/steps.ts';
import { SegmentBuilder, StepEncoder } from '../../src/store/sql/log/append/segment_builder.ts';
import { type Segment, SegmentCursor } from '../../src/store/sql/log/read/segment.ts';
import { PLAIN } from '../../src/store/sql/log/read/stored_body.ts';
import type { Engine } from '../support/database.ts';
import { packed } from '../support/packed_steps.ts';
import type { OutsideSql } from './sql.ts';

/** Creates nested branches as they could exist before there was a limit: too many to create them by calls. */
export interface DeepTree {
  /** The id of the trajectory at a depth from 1 on. */
  idOf(depth: number): string;
}

/**
 * Writes a chain of branches below a root that owns exactly step 0. The branch of depth d starts after step d - 1 and
 * owns step d. That step is a copy of step 0 with the reward `reward(d)`. Ids are unique
 * within a namespace, for one chain.
 */
export async function makeDeepTree(
  engine: Engine,
  sql: OutsideSql,
  root: { readonly id: string; readonly ref: { readonly key: bigint } },
  depth: number,
  reward: (depth: number) => number | undefined = (depth) => depth,
): Promise<DeepTree> {
  const first = (await takeKeys(engine, sql, depth)) - BigInt(depth);
  const digits = engine === 'sqlite' ? "printf('%012x', i)" : "lpad(to_hex(i), 12, '0')";
  const id = `'00000000-0000-4000-8000-' || ${digits}`;
  const uuid = engine === 'sqlite' ? id : `(${id})::uuid`;
  const { key } = root.ref;
  const depths = `depths (i) as (select 1 union all select i + 1 from depths where i < ${depth})`;
  // The copied row is read once, whatever the plan of the rest.
  const rowOf = `r as materialized (select * from trajectories where key = ${key})`;
  const stepOf = `s as materialized (select * from segments where tree = ${key} and trajectory = ${key} and first_step_number = 0)`;
  await sql.rows(`insert into trajectories (tree, key, namespace, id, uid, parent, branch_point, name, task_id, labels, metadata_json, metrics,
      status, status_message, writer_id, writer_epoch, next_step_number, reward_sum, byte_sum, hidden, create_time, update_time, depth)
    with recursive ${depths}, ${rowOf}, ${stepOf}
    select r.tree, ${first} + i, r.namespace, ${uuid}, ${uuid}, case i when 1 then r.key else ${first} + i - 1 end, i - 1, 'depth ' || i,
      r.task_id, r.labels, r.metadata_json, r.metrics, r.status, r.status_message, '', 0, i + 1, 0, (i + 1) * s.byte_sum, r.hidden,
      r.create_time, r.update_time, i
    from depths cross join r cross join s`);
  await insertSegments(engine, sql, key, first, depth, reward);
  await sql.rows(`update trajectories set (min_reward, max_reward) = (select min(s.min_reward), max(s.max_reward)
    from segments as s where s.tree = trajectories.tree and s.trajectory = trajectories.key) where tree = ${key}`);
  // Plans that the store cached while the tables were nearly empty would stay in use until Postgres gathers statistics
  // by itself.
  if (engine === 'postgres') for (const table of ['trajectories', 'segments']) await sql.rows(`analyze ${table}`);
  return { idOf: (of) => `00000000-0000-4000-8000-${of.toString(16).padStart(12, '0')}` };
}

async function insertSegments(
  engine: Engine,
  sql: OutsideSql,
  root: bigint,
  first: bigint,
  depth: number,
  reward: (depth: number) => number | undefined,
): Promise<void> {
  const [from] = await sql.rows(
    `select *, cast(commit_time as text) as commit_text from segments where tree = ${root} and trajectory = ${root}`,
  );
  const commitTime = `${from!.commit_text}`;
  const stored: Segment = {
    first_step_number: 0n,
    next_step_number: 1n,
    writer_epoch: 0n,
    commit_time: commitTime,
    commits: null,
    reward_sum: 0,
    checksum: BigInt(`${from!.checksum}`),
    encoding: PLAIN,
    body_bytes: null,
    body: from!.body as Uint8Array,
  };
  const copied = new SegmentCursor(stored);
  copied.next();
  const encoder = new StepEncoder();
  const rows = Array.from({ length: depth }, (_, i) => {
    const step = packed({ ...copied.read('FULL'), stepNumber: BigInt(i + 1), reward: reward(i + 1) });
    const owner = { tree: root, key: first + BigInt(i + 1), namespace: `${from!.namespace}`, writerEpoch: 0n };
    const segment = new SegmentBuilder(owner, { ...NO_SUMS, byteSum: BigInt(i + 1) * 200n }, step.stepNumber);
    segment.add(step, encoder.encode(step, new Map()));
    return segment.row(commitTime);
  });
  for (let at = 0; at < rows.length; at += 500) {
    const values = rows.slice(at, at + 500).map((row) => {
      return `(${SEGMENTS.order.map(({ name, type }) => literal(engine, type, row[name as keyof SegmentRow])).join()})`;
    });
    const names = SEGMENTS.order.map(({ name }) => name).join();
    await sql.rows(`insert into segments (${names}) values ${values.join()}`);
  }
}

function literal(engine: Engine, type: string, value: bigint | number | string | Uint8Array | null): string {
  if (type !== 'bytea') return typeof value === 'string' ? `'${value}'` : `${value}`;
  const hex = Buffer.from(value as Uint8Array).toString('hex');
  return engine === 'sqlite' ? `x'${hex}'` : `'\\x${hex}'`;
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
