import type { StorageUsage } from '../../src/domain/usage.ts';
import type { OutsideSql } from './sql.ts';

/** What is measured: trajectories by row key, runs by row key, or the namespace. */
export type NaiveScope = { readonly trajectory: bigint } | { readonly run: bigint } | 'namespace';

type Row = Record<string, unknown>;

/** Measures the use of storage from all rows of a namespace in memory, with nothing but their definition. */
export async function naiveUsage(sql: OutsideSql, namespace: string): Promise<(of: NaiveScope) => StorageUsage> {
  const all = (table: string, columns: string) =>
    sql.rows(`select ${columns} from ${table} where namespace = '${namespace}'`);
  const trajectories = await all('trajectories', 'key, parent, branch_point, next_step_number, run, hidden, purging');
  const byKey = new Map(trajectories.map((row) => [BigInt(`${row.key}`), row]));
  const segments = await all(
    'segments',
    `trajectory, first_step_number as step, octet_length(body) as body, coalesce(body_bytes, octet_length(body)) as sent,
     octet_length(states) as small, coalesce(states_bytes, octet_length(states)) as small_sent`,
  );
  const attached = await all('attached_states', 'trajectory, step_number as step, octet_length(data) as data');
  const refs = await all('state_refs', 'trajectory, step_number as step, state');
  const states = await all('states', 'key, size, octet_length(data) as data, upload');
  const chunks = await all('state_chunks', 'upload, octet_length(data) as data');
  const chunkBytes = (upload: unknown) =>
    sum(chunks.filter((chunk) => chunk.upload === upload).map(({ data }) => data));

  /** Whether the step of a row is in the lineage of one of the trajectories. */
  function seenBy(viewers: readonly Row[]): (row: Row) => boolean {
    const ends = new Map<bigint, bigint>();
    for (const viewer of viewers) {
      let end = BigInt(`${viewer.next_step_number}`);
      for (let at: Row | undefined = viewer; at !== undefined; ) {
        const key = BigInt(`${at.key}`);
        if ((ends.get(key) ?? 0n) < end) ends.set(key, end);
        end = BigInt(`${at.branch_point ?? 0}`) + 1n;
        at = at.parent === null ? undefined : byKey.get(BigInt(`${at.parent}`));
      }
    }
    return ({ trajectory, step }) => BigInt(`${step}`) < (ends.get(BigInt(`${trajectory}`)) ?? 0n);
  }

  return (of) => {
    const visible = trajectories.filter(({ hidden, purging }) => Number(hidden) === 0 && Number(purging) === 0);
    const isMember = (row: Row) =>
      of === 'namespace' ||
      ('run' in of ? row.run !== null && BigInt(`${row.run}`) === of.run : BigInt(`${row.key}`) === of.trajectory);
    const isInside = of === 'namespace' ? () => true : seenBy(visible.filter(isMember));
    const isOutside = of === 'namespace' ? () => false : seenBy(visible.filter((row) => !isMember(row)));
    const usage = { steps: { logical: 0n, stored: 0n, shared: 0n }, states: { logical: 0n, stored: 0n, shared: 0n } };
    const count = (used: keyof typeof usage, logical: unknown, stored: unknown, isShared: boolean) => {
      usage[used].logical += BigInt(`${logical ?? 0}`);
      usage[used].stored += BigInt(`${stored ?? 0}`);
      if (isShared) usage[used].shared += BigInt(`${stored ?? 0}`);
    };
    for (const row of segments.filter(isInside)) {
      count('steps', row.sent, row.body, isOutside(row));
      count('states', row.small_sent, row.small, isOutside(row));
    }
    for (const row of attached.filter(isInside)) count('states', row.data, row.data, isOutside(row));
    for (const state of states) {
      const references = refs.filter((row) => `${row.state}` === `${state.key}`);
      const inside = references.filter(isInside);
      count('states', BigInt(inside.length) * BigInt(`${state.size}`), 0, false);
      if (of === 'namespace') count('states', 0, state.data, false);
      else if (inside.length > 0) {
        const bytes = state.upload === null ? state.data : chunkBytes(state.upload);
        count('states', 0, bytes, references.some(isOutside));
      }
    }
    // Also those of uploads that have not ended.
    if (of === 'namespace') for (const { data } of chunks) count('states', 0, data, false);
    return usage;
  };
}

function sum(values: readonly unknown[]): bigint {
  return values.reduce<bigint>((all, value) => all + BigInt(`${value ?? 0}`), 0n);
}
