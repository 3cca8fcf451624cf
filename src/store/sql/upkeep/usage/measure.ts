import { type RawBuilder, sql } from 'kysely';
import type { StorageUsage, UsageProgress, UsedBytes } from '../../../../domain/usage.ts';
import type { UsageStore } from '../../../contract/retention.ts';
import { chunksOf, padded } from '../../kit/kept_queries.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { MOST_RANGES, rangeTable } from '../../log/trajectory/range_table.ts';
import { KeySet } from './key_set.ts';
import { type MeasuredRange, type Parts, partsOf, partsOfNamespace } from './parts.ts';

/** Steps that one statement reads, in at most `MOST_RANGES` ranges. */
const WINDOW = 16_384n;

export async function* measureUsage(
  scope: ReadScope,
  of: Parameters<UsageStore['measureUsage']>[1],
): AsyncGenerator<UsageProgress, StorageUsage, undefined> {
  const isWhole = of === 'namespace';
  const parts = isWhole ? await partsOfNamespace(scope) : await partsOf(scope, of);
  const measured = new Measurement(scope, parts, isWhole);
  yield { done: 0n, total: parts.total };
  let done = 0n;
  for await (const ranges of parts.ranges()) {
    for (const window of windowsOf(ranges)) {
      await measured.add(window);
      for (const { from, to } of window.ranges) done += to - from;
      yield { done: done < parts.total ? done : parts.total, total: parts.total };
    }
  }
  if (isWhole) for await (const _page of measured.addAllRows()) yield { done: parts.total, total: parts.total };
  return measured.usage;
}

type Range = Omit<MeasuredRange, 'outside'>;

interface Window {
  readonly ranges: readonly Range[];
  /** Whether others refer to these steps too. */
  readonly isShared: boolean;
}

/** Cuts ranges where others stop referring to them, and packs them into windows. */
function* windowsOf(ranges: readonly MeasuredRange[]): Generator<Window, void, undefined> {
  for (const isShared of [true, false]) {
    let packed: Range[] = [];
    let steps = 0n;
    for (const { outside, ...range } of ranges) {
      const end = isShared ? least(range.to, outside) : range.to;
      for (let from = isShared ? range.from : most(range.from, outside); from < end; ) {
        const to = least(end, from + WINDOW - steps);
        packed.push({ ...range, from, to });
        steps += to - from;
        from = to;
        if (steps < WINDOW && packed.length < MOST_RANGES) continue;
        yield { ranges: packed, isShared };
        [packed, steps] = [[], 0n];
      }
    }
    if (packed.length > 0) yield { ranges: packed, isShared };
  }
}

interface Bytes {
  readonly logical: bigint;
  readonly stored: bigint;
}

interface StateRow {
  readonly key: bigint;
  readonly size: bigint;
  /** Null if the state is stored in chunks. */
  readonly bytes: bigint | null;
  readonly upload: string | null;
}

/** The first reference of a trajectory to a state. */
interface ReferenceRow {
  readonly state: bigint;
  readonly tree: bigint;
  readonly trajectory: bigint;
  readonly step_number: bigint;
}

/** References that one statement reads. */
const REFERENCES = 256;

/** Rows of states, or of uploads, that one statement reads. */
const PAGE = 1000;

/** Uploads whose chunks one statement adds up. */
const UPLOADS = 64;

const NO_UUID = '00000000-0000-0000-0000-000000000000';

const STATE_COLUMNS = sql`s.key, s.size, cast(octet_length(s.data) as bigint) as bytes, s.upload`;

/** Sum of lengths that may be null. */
function sum(lengths: RawBuilder<unknown>): RawBuilder<bigint> {
  return sql<bigint>`cast(coalesce(sum(${lengths}), 0) as bigint)`;
}

function nothing(): UsedBytes {
  return { logical: 0n, stored: 0n, shared: 0n };
}

function count(used: UsedBytes, { logical, stored }: Bytes, isShared: boolean): void {
  used.logical += logical;
  used.stored += stored;
  if (isShared) used.shared += stored;
}

function least(one: bigint, other: bigint): bigint {
  return one < other ? one : other;
}

function most(one: bigint, other: bigint): bigint {
  return one > other ? one : other;
}

class Measurement {
  readonly usage: StorageUsage = { steps: nothing(), states: nothing() };
  readonly #scope: ReadScope;
  readonly #parts: Parts;
  /** Whether the rows of all states of the namespace count, also of those that no step refers to. */
  readonly #isWhole: boolean;
  /** States whose rows were counted. */
  readonly #counted = new KeySet();

  constructor(scope: ReadScope, parts: Parts, isWhole: boolean) {
    this.#scope = scope;
    this.#parts = parts;
    this.#isWhole = isWhole;
  }

  async add(window: Window): Promise<void> {
    await this.#addSteps(window);
    await this.#addStates(window);
  }

  async #addSteps({ ranges, isShared }: Window): Promise<void> {
    const { engine, db } = this.#scope;
    const of = rangeTable(engine, ranges);
    const { rows } = await sql<{ steps: bigint; body: bigint; states: bigint; small: bigint }>`with ${of} select
      ${sum(sql`coalesce(s.body_bytes, octet_length(s.body))`)} as steps, ${sum(sql`octet_length(s.body)`)} as body,
      ${sum(sql`coalesce(s.states_bytes, octet_length(s.states))`)} as states, ${sum(sql`octet_length(s.states)`)} as small
      from g cross join ${engine.sql.table('segments')} as s where s.tree = g.tree and s.trajectory = g.key
        and s.first_step_number >= g.lo and s.first_step_number < g.hi`.execute(db);
    const attached = await sql<{ data: bigint }>`with ${of} select ${sum(sql`octet_length(a.data)`)} as data
      from g cross join ${engine.sql.table('attached_states')} as a where a.tree = g.tree and a.trajectory = g.key
        and a.step_number >= g.lo and a.step_number < g.hi`.execute(db);
    const { steps, body, states, small } = rows[0]!;
    const { data } = attached.rows[0]!;
    count(this.usage.steps, { logical: steps, stored: body }, isShared);
    count(this.usage.states, { logical: states + data, stored: small + data }, isShared);
  }

  async #addStates({ ranges, isShared }: Window): Promise<void> {
    const { engine, db } = this.#scope;
    const { rows } = await sql<StateRow & { readonly refs: bigint }>`with ${rangeTable(engine, ranges)},
      c as materialized (select r.state, count(*) as refs from g cross join ${engine.sql.table('state_refs')} as r
        where r.tree = g.tree and r.trajectory = g.key and r.step_number >= g.lo and r.step_number < g.hi
        group by r.state)
      select ${STATE_COLUMNS}, c.refs
      from c cross join ${engine.sql.table('states')} as s where s.key = c.state`.execute(db);
    for (const { size, refs } of rows) this.usage.states.logical += size * refs;
    if (!this.#isWhole) await this.#addRows(rows, isShared);
  }

  /** Adds the rows of all states of the namespace, and of uploads that have not ended, page by page. */
  async *addAllRows(): AsyncGenerator<void, void, undefined> {
    const { db, namespace } = this.#scope;
    const bytes = sql<bigint>`cast(coalesce(octet_length(data), 0) as bigint)`.as('bytes');
    const states = db.selectFrom('states').select(['digest', 'upload', bytes]).where('namespace', '=', namespace);
    for (let after: Uint8Array = new Uint8Array(), isLast = false; !isLast; ) {
      const page = await states.where('digest', '>', after).orderBy('digest').limit(PAGE).execute();
      for (const row of page) count(this.usage.states, { logical: 0n, stored: row.bytes }, false);
      await this.#addUploads(page.flatMap(({ upload }) => upload ?? []));
      yield;
      isLast = page.length < PAGE;
      after = page.at(-1)?.digest ?? after;
    }
    const uploads = db.selectFrom('state_uploads').select('upload').where('namespace', '=', namespace);
    for (let after = NO_UUID, isLast = false; !isLast; ) {
      const page = await uploads.where('upload', '>', after).orderBy('upload').limit(PAGE).execute();
      await this.#addUploads(page.map(({ upload }) => upload));
      yield;
      isLast = page.length < PAGE;
      after = page.at(-1)?.upload ?? after;
    }
  }

  async #addUploads(uploads: readonly string[]): Promise<void> {
    count(this.usage.states, { logical: 0n, stored: await this.#chunkBytes(uploads) }, false);
  }

  /** Adds the rows of states that were not counted before. */
  async #addRows(rows: readonly StateRow[], isShared: boolean): Promise<void> {
    const added = rows.filter(({ key }) => this.#counted.add(key));
    const shared = isShared ? undefined : await this.#sharedOf(added.map(({ key }) => key));
    for (const together of [true, false]) {
      const these = added.filter(({ key }) => (shared?.has(key) ?? true) === together);
      const inRows = these.reduce((all, { bytes }) => all + (bytes ?? 0n), 0n);
      const stored = inRows + (await this.#chunkBytes(these.flatMap(({ upload }) => upload ?? [])));
      count(this.usage.states, { logical: 0n, stored }, together);
    }
  }

  /** Returns the states that references outside name, in pages of their references by trajectory. */
  async #sharedOf(states: readonly bigint[]): Promise<ReadonlySet<bigint>> {
    const shared = new Set<bigint>();
    const { isOutside } = this.#parts;
    for (let left of chunksOf(states)) {
      // The last state of a page may have more references.
      let open: ReferenceRow | undefined;
      while (left.length > 0 || open !== undefined) {
        const rows = await this.#references(open === undefined ? left : [open.state], open);
        for (const { state, trajectory, step_number } of rows) {
          if (isOutside(trajectory, step_number)) shared.add(state);
        }
        const last = rows.length < REFERENCES ? undefined : rows.at(-1);
        if (open === undefined) left = last === undefined ? [] : left.filter((key) => key > last.state);
        open = last === undefined || shared.has(last.state) ? undefined : last;
      }
    }
    return shared;
  }

  /** Returns the first reference of each trajectory to these states, or to the rest of one. */
  async #references(states: readonly bigint[], after: ReferenceRow | undefined): Promise<ReferenceRow[]> {
    const { engine, db } = this.#scope;
    const which =
      after === undefined
        ? engine.sql.among(sql.ref('r.state'), states)
        : sql`r.state = ${after.state} and (r.tree, r.trajectory) > (${after.tree}, ${after.trajectory})`;
    const { rows } = await sql<ReferenceRow>`
      select r.state, r.tree, r.trajectory, min(r.step_number) as step_number
      from ${engine.sql.table('state_refs')} as r
      where ${which} group by r.state, r.tree, r.trajectory order by r.state, r.tree, r.trajectory
      limit ${sql.lit(REFERENCES)}`.execute(db);
    return rows;
  }

  /** Chunks that refer to those of other uploads have no bytes. */
  async #chunkBytes(uploads: readonly string[]): Promise<bigint> {
    let bytes = 0n;
    for (let at = 0; at < uploads.length; at += UPLOADS) {
      const some = uploads.slice(at, at + UPLOADS);
      const row = await this.#scope.db
        .selectFrom('state_chunks')
        .select(sum(sql`octet_length(data)`).as('bytes'))
        .where('upload', 'in', padded(some))
        .executeTakeFirstOrThrow();
      bytes += row.bytes;
    }
    return bytes;
  }
}
