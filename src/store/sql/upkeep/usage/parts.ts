import { sql } from 'kysely';
import { rangesOf, type TreeRange } from '../../../../domain/lineage.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { UsageStore } from '../../../contract/retention.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { getLineage } from '../../log/trajectory/lineage.ts';
import { MOST_RANGES, rangeTable } from '../../log/trajectory/range_table.ts';
import { KeySet } from './key_set.ts';

export type MeasuredScope = Exclude<Parameters<UsageStore['measureUsage']>[1], 'namespace'>;

/**
 * Own steps [from, to) of a trajectory. Other trajectories, outside of what is measured, refer to those before
 * `outside`.
 */
export interface MeasuredRange extends TreeRange {
  readonly outside: bigint;
}

/** What is measured: ranges of steps, and which references to states are outside of them. */
export interface Parts {
  /** Steps of all ranges. */
  readonly total: bigint;
  readonly ranges: () => AsyncGenerator<readonly MeasuredRange[], void, undefined>;
  /** Whether a reference by this step is visible outside. */
  readonly isOutside: (trajectory: bigint, stepNumber: bigint) => boolean;
}

/** Trajectories of one statement. */
const PAGE = MOST_RANGES;

interface MemberRow {
  readonly tree: bigint;
  readonly key: bigint;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
  readonly next_step_number: bigint;
}

/**
 * Pages through the measured trajectories. A hidden one counts in the namespace; elsewhere only its branches count.
 */
async function* members(
  { db, namespace }: ReadScope,
  of: MeasuredScope | 'namespace',
): AsyncGenerator<MemberRow[], void, undefined> {
  const measured = of === 'namespace' ? {} : { hidden: 0 as const, ...('run' in of ? { run: of.run } : of.trajectory) };
  const query = db
    .selectFrom('trajectories')
    .select(['tree', 'key', 'parent', 'branch_point', 'next_step_number'])
    .where((row) => row.and({ namespace, ...measured }))
    .orderBy('key')
    .limit(PAGE);
  for (let after = 0n; ; ) {
    const rows = await query.where('key', '>', after).execute();
    if (rows.length > 0) yield rows;
    if (rows.length < PAGE) return;
    after = rows.at(-1)!.key;
  }
}

function beginOf({ branch_point: point }: { readonly branch_point: bigint | null }): bigint {
  return point === null ? 0n : point + 1n;
}

/** The own steps of all trajectories of a namespace. Nothing is outside. */
export async function partsOfNamespace(scope: ReadScope): Promise<Parts> {
  let total = 0n;
  for await (const rows of members(scope, 'namespace'))
    for (const row of rows) total += row.next_step_number - beginOf(row);
  async function* ranges() {
    for await (const rows of members(scope, 'namespace')) yield rows.map((row) => ownRange(row, 0n));
  }
  return { total, ranges, isOutside: () => false };
}

function ownRange(row: MemberRow, outside: bigint): MeasuredRange {
  return { tree: row.tree, key: row.key, from: beginOf(row), to: row.next_step_number, outside };
}

/** The steps that a trajectory, or the trajectories of a run, refer to. */
export async function partsOf(scope: ReadScope, of: MeasuredScope): Promise<Parts> {
  const family = new Family(scope, of);
  await family.load();
  return family;
}

interface Link {
  readonly tree: bigint;
  readonly parent: bigint;
  readonly branchPoint: bigint;
}

interface BranchRow extends Link {
  readonly key: bigint;
}

interface Inherited extends TreeRange {
  readonly hidden: boolean;
}

/**
 * The measured trajectories (members), their ancestors, and how far others refer to the steps of both. A hidden
 * trajectory refers to nothing by itself: its branches do. A member takes a bit of memory, and more only if a branch
 * outside begins at it or at its descendants. Links are read when they are needed, because a run may have a million
 * branches.
 */
class Family implements Parts {
  readonly #scope: ReadScope;
  readonly #of: MeasuredScope;
  readonly #members = new KeySet();
  /** Steps that members inherit, by owner. */
  readonly #inherited = new Map<bigint, Inherited>();
  /** By member or hidden trajectory, the end of the steps that others refer to. */
  readonly #outside = new Map<bigint, bigint>();
  readonly #hidden = new Set<bigint>();
  total = 0n;

  constructor(scope: ReadScope, of: MeasuredScope) {
    this.#scope = scope;
    this.#of = of;
  }

  async load(): Promise<void> {
    for await (const rows of members(this.#scope, this.#of)) {
      for (const row of rows) {
        this.#members.add(row.key);
        this.total += row.next_step_number - beginOf(row);
      }
    }
    let hidden: TrajectoryRef[] = [];
    for await (const rows of members(this.#scope, this.#of)) {
      for (const { tree, parent, branch_point: branchPoint } of rows) {
        if (parent === null || branchPoint === null || this.#members.has(parent)) continue;
        await this.#inherit({ tree, parent, branchPoint });
      }
      hidden.push(...(await this.#findOutside(rows)));
    }
    for (const { tree, key, from, to, hidden: isHidden } of this.#inherited.values()) {
      this.total += to - from;
      if (!isHidden || this.#hidden.has(key)) continue;
      this.#hidden.add(key);
      hidden.push({ tree, key });
    }
    while (hidden.length > 0) hidden = await this.#findOutside(hidden);
  }

  async *ranges(): AsyncGenerator<readonly MeasuredRange[], void, undefined> {
    for await (const rows of members(this.#scope, this.#of)) {
      yield rows.map((row) => ownRange(row, this.#outside.get(row.key) ?? 0n));
    }
    yield [...this.#inherited.values()].map(({ tree, key, from, to, hidden }) => {
      return { tree, key, from, to, outside: hidden ? (this.#outside.get(key) ?? 0n) : to };
    });
  }

  readonly isOutside = (trajectory: bigint, stepNumber: bigint): boolean => {
    if (!this.#members.has(trajectory) && !this.#hidden.has(trajectory)) return true;
    return stepNumber < (this.#outside.get(trajectory) ?? 0n);
  };

  /** Adds what a member inherits. Branches of one parent inherit the same of its ancestors. */
  async #inherit({ tree, parent, branchPoint }: Link): Promise<void> {
    const known = this.#inherited.get(parent);
    if (known !== undefined && known.to > branchPoint) return;
    const chain = await getLineage(this.#scope, { tree, key: parent });
    for (const [i, range] of rangesOf(chain, branchPoint + 1n).entries()) {
      const { key, from, to } = range;
      if (this.#members.has(key) || (this.#inherited.get(key)?.to ?? 0n) >= to) continue;
      this.#inherited.set(key, { tree, key, from, to, hidden: chain[i]!.hidden });
    }
  }

  /** Finds the branches of these trajectories that are not members. Returns new hidden ones, whose branches count. */
  async #findOutside(refs: readonly TrajectoryRef[]): Promise<TrajectoryRef[]> {
    const found: TrajectoryRef[] = [];
    for (let at = 0; at < refs.length; at += PAGE) {
      const { outsiders, hidden } = await this.#branchesOf(refs.slice(at, at + PAGE));
      await this.#raise(outsiders);
      for (const { tree, key } of hidden) {
        if (this.#hidden.has(key)) continue;
        this.#hidden.add(key);
        found.push({ tree, key });
      }
    }
    return found;
  }

  /** Returns the last branch points of branches that are not members, and the hidden branches. */
  async #branchesOf(refs: readonly TrajectoryRef[]) {
    const { engine, db } = this.#scope;
    const table = rangeTable(
      engine,
      refs.map((ref) => ({ ...ref, from: 0n, to: 0n })),
    );
    const branches = sql`g cross join ${engine.sql.table('trajectories')} as t
      where t.tree = g.tree and t.parent = g.key and not t.purging`;
    const isOther =
      'run' in this.#of ? sql`(t.run is null or t.run <> ${this.#of.run})` : sql`t.key <> ${this.#of.trajectory.key}`;
    const outsiders = await sql<Link>`with ${table}
      select t.tree, t.parent, max(t.branch_point) as ${sql.ref('branchPoint')} from ${branches} and not t.hidden
        and ${isOther}
      group by t.tree, t.parent`.execute(db);
    const hidden = await sql<TrajectoryRef>`with ${table}
      select t.tree, t.key from ${branches} and t.hidden`.execute(db);
    return { outsiders: outsiders.rows, hidden: hidden.rows };
  }

  /** Others refer to the steps up to these branch points, and to what the owners of the steps inherit. */
  async #raise(links: readonly Link[]): Promise<void> {
    for (let next = this.#raiseEach(links); next.length > 0; ) {
      await nextIteration();
      const above = await this.#linksFrom(next);
      const read = new Set(above.map(({ key }) => key));
      // Ancestors that were raised before have raised theirs. A root has no link, so nothing is read for it.
      next = this.#raiseEach(above).filter(({ key }) => !read.has(key));
    }
  }

  /** Returns trajectories whose steps had no known reference from outside. */
  #raiseEach(links: readonly Link[]): TrajectoryRef[] {
    const raised: TrajectoryRef[] = [];
    for (const { tree, parent, branchPoint } of links) {
      const known = this.#outside.get(parent);
      if (known === undefined) raised.push({ tree, key: parent });
      if (known === undefined || known <= branchPoint) this.#outside.set(parent, branchPoint + 1n);
    }
    return raised;
  }

  /** Returns the links of trajectories and of their next ancestors. Of few trajectories, more ancestors are read. */
  async #linksFrom(refs: readonly TrajectoryRef[]): Promise<readonly BranchRow[]> {
    const { engine, db } = this.#scope;
    const trajectories = engine.sql.table('trajectories');
    const links: BranchRow[] = [];
    for (let at = 0; at < refs.length; at += PAGE) {
      const some = refs.slice(at, at + PAGE).map((ref) => ({ ...ref, from: 0n, to: 0n }));
      const { rows } = await sql<BranchRow>`with recursive ${rangeTable(engine, some)},
        chain(tree, key, parent, branch_point, place) as (
          select t.tree, t.key, t.parent, t.branch_point, 1 from g cross join ${trajectories} as t
          where t.tree = g.tree and t.key = g.key and t.parent is not null
          union
          select t.tree, t.key, t.parent, t.branch_point, c.place + 1 from chain as c cross join ${trajectories} as t
          where t.tree = c.tree and t.key = c.parent and t.parent is not null
            and c.place < ${sql.lit(Math.floor(PAGE / some.length))})
        select distinct tree, key, parent, branch_point as ${sql.ref('branchPoint')} from chain`.execute(db);
      links.push(...rows);
    }
    return links;
  }
}
