import { type Selectable, sql } from 'kysely';
import { ARCHIVE_FORMAT, ARCHIVE_VERSION, type ArchivePart, type ArchiveScope } from '../../../../domain/archive.ts';
import { runNotFound, trajectoryNotFound } from '../../../../domain/errors.ts';
import { type RunKind, Spool } from '../../../spool.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Tables } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { KeySet } from '../usage/key_set.ts';
import {
  catalogueLines,
  deletedLines,
  experimentLines,
  metricLines,
  pages,
  runAlone,
  spoolRun,
  tasksOfRun,
} from './export_rows.ts';
import { TrajectoryExport } from './export_trajectory.ts';
import { MOST_LEFT_OUT } from './record_checks.ts';
import { lineOf } from './row_keys.ts';

/** Bytes of one part of records, unless one record has more. */
const RECORDS_BYTES = 256 * 1024;

/** Trajectories that one statement reads. */
const PAGE = 500;

/** A trajectory to export, with the columns that decide which of its steps and ancestors are exported. */
type TrajectoryRow = Pick<Selectable<Tables['trajectories']>, (typeof ROW_COLUMNS)[number]>;

/**
 * V5: exports a namespace, a run or a trajectory. Each statement is short, and none waits for a writer. Trajectories
 * that are created after the export began are left out. Errors: RUN_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_CORRUPT,
 * STATE_CORRUPT.
 */
export async function* exportArchive(
  scope: ReadScope,
  what: ArchiveScope,
): AsyncGenerator<ArchivePart, void, undefined> {
  const spool = new Spool();
  try {
    yield* new Export(scope, what, spool).parts();
  } finally {
    spool.close();
  }
}

class Export {
  readonly #scope: ReadScope;
  readonly #what: ArchiveScope;
  readonly #spool: Spool;
  readonly #trajectories: TrajectoryExport;
  readonly #experiments = new KeySet();
  /** Runs that were exported, with or without what they contain. */
  readonly #withRow = new KeySet();
  /** Trajectories that were exported or left out. */
  readonly #done = new KeySet();
  #runs = 0n;
  #rollouts = 0n;

  constructor(scope: ReadScope, what: ArchiveScope, spool: Spool) {
    this.#spool = spool;
    this.#scope = scope;
    this.#what = what;
    this.#trajectories = new TrajectoryExport(scope);
  }

  async *parts(): AsyncGenerator<ArchivePart, void, undefined> {
    const run = await this.#runOf();
    const single = await this.#singleOf();
    const { namespace } = this.#scope;
    const named = this.#what.kind === 'namespace' ? {} : { id: this.#what.id };
    yield records(
      lineOf('archive', {
        format: ARCHIVE_FORMAT,
        version: ARCHIVE_VERSION,
        namespace,
        scope: this.#what.kind,
        ...named,
      }),
    );
    if (single === undefined) yield* this.#many(run);
    else {
      const { experiment } = single;
      if (experiment !== null) yield* collected(experimentLines(this.#scope, experiment));
      yield* this.#withAncestors(single, single);
    }
    const { trajectories, steps, states, leftOut } = this.#trajectories;
    const counts = Object.entries({ trajectories, steps, states, runs: this.#runs, rollouts: this.#rollouts });
    yield records(
      lineOf('end', {
        ...Object.fromEntries(counts.map(([name, count]) => [name, `${count}`])),
        left_out: leftOut.slice(0, MOST_LEFT_OUT),
      }),
    );
  }

  /**
   * A run, or the whole namespace. Runs are read first, then trajectories: each that a run refers to is older. The
   * catalogue is read last of what runs refer to, and exported first.
   */
  async *#many(run: bigint | undefined): AsyncGenerator<ArchivePart, void, undefined> {
    const within = run === undefined ? sql`namespace = ${this.#scope.namespace} and not hidden` : sql`key = ${run}`;
    for await (const rows of pages(this.#scope, 'runs', within))
      for (const { key } of rows) await spoolRun(this.#scope, key as bigint, this.#spool);
    const horizon = await lastKey(this.#scope);
    yield* collected(run === undefined ? catalogueLines(this.#scope) : tasksOfRun(this.#scope, run));
    for (const key of this.#spool.runs()) yield* this.#run(key);
    yield* this.#all(run, horizon);
    for (const key of this.#spool.runs()) yield* collected(this.#spooled(key, ['main_trajectory', 'group', 'rollout']));
    if (run === undefined) yield* collected(deletedLines(this.#scope));
  }

  async #runOf(): Promise<bigint | undefined> {
    if (this.#what.kind !== 'run') return undefined;
    const row = await visibleById(this.#scope, 'runs', this.#what.id).select('key').executeTakeFirst();
    if (row === undefined) throw runNotFound(this.#what.id);
    return row.key;
  }

  async #singleOf(): Promise<TrajectoryRow | undefined> {
    if (this.#what.kind !== 'trajectory') return undefined;
    const { id } = this.#what;
    const row = await visibleById(this.#scope, 'trajectories', id).select(ROW_COLUMNS).executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(id);
    return row;
  }

  async *#run(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    this.#withRow.add(key);
    yield* this.#parentRun(key);
    yield* collected(this.#spooled(key, ['experiment', 'run', 'stage', 'environment', 'cancellation']));
    yield* collected(metricLines(this.#scope, key));
    this.#runs += 1n;
  }

  async *#spooled(run: bigint, kinds: readonly RunKind[]): AsyncGenerator<string, void, undefined> {
    for (const kind of kinds) {
      for (const { key, line } of this.#spool.records(kind, run)) {
        if (kind === 'experiment' && !this.#experiments.add(key)) continue;
        if (kind === 'rollout') this.#rollouts += 1n;
        yield* linesIn(line);
      }
    }
  }

  /** A branched run needs the runs above it, but not what these contain. */
  async *#parentRun(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    const query = this.#scope.db.selectFrom('runs').select('parent').where('key', '=', key);
    const parent = (await query.executeTakeFirst())?.parent ?? null;
    if (parent !== null) yield* this.#runAlone(parent);
  }

  async *#runAlone(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    if (!this.#withRow.add(key)) return;
    yield* this.#parentRun(key);
    const lines = await runAlone(this.#scope, key);
    yield* collected(lines);
  }

  /** Trajectories in order of key: parents come before their branches. */
  async *#all(run: bigint | undefined, horizon: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    for (let after = 0n; ; ) {
      const { engine, db, namespace } = this.#scope;
      const of = run === undefined ? sql`namespace = ${namespace}` : sql`run = ${run} and not hidden`;
      const { rows } = await sql<TrajectoryRow>`
        select ${sql.join(ROW_COLUMNS.map((name) => sql.ref(name)))} from ${engine.sql.table('trajectories')} as t
        where ${of} and key > ${after} and key <= ${horizon} and not purging
          and not exists (select 1 from ${engine.sql.table('trajectory_imports')} as i
            where i.tree = t.tree and i.trajectory = t.key)
        order by key limit ${sql.lit(PAGE)}`.execute(db);
      for (const row of rows) {
        // Its run was created after the runs were read.
        if (row.run !== null && !this.#spool.has(row.run)) continue;
        yield* this.#withAncestors(row, undefined);
      }
      if (rows.length < PAGE) return;
      after = rows.at(-1)!.key;
    }
  }

  /** `leaf`: the only trajectory that was selected, so that ancestors end at the branch points of its lineage. */
  async *#withAncestors(
    first: TrajectoryRow,
    leaf: TrajectoryRow | undefined,
  ): AsyncGenerator<ArchivePart, void, undefined> {
    const chain: { readonly row: TrajectoryRow; readonly end: bigint; readonly hidden: boolean }[] = [];
    let child: TrajectoryRow | undefined;
    for (let at: TrajectoryRow | undefined = first; at !== undefined && !this.#done.has(at.key); ) {
      const isSelected = at === first && !isSet(at.hidden);
      const end = isSelected ? at.next_step_number : await this.#neededEnd(at, leaf === undefined ? undefined : child);
      chain.push({ row: at, end, hidden: !isSelected });
      child = at;
      at = at.parent === null ? undefined : await this.#parentOf(at.tree, at.parent);
    }
    for (const { row: each, end, hidden } of chain.reverse()) {
      this.#done.add(each.key);
      if (each.run !== null) yield* this.#runAlone(each.run);
      yield* this.#trajectories.export({ tree: each.tree, key: each.key, id: each.id, end, hidden });
    }
  }

  async #parentOf(tree: bigint, key: bigint): Promise<TrajectoryRow | undefined> {
    const { db } = this.#scope;
    const query = db.selectFrom('trajectories').select(ROW_COLUMNS).where('tree', '=', tree).where('key', '=', key);
    return query.where('purging', '=', 0).executeTakeFirst();
  }

  /** Returns the end of the steps of an ancestor that exported branches need. */
  async #neededEnd(row: TrajectoryRow, child: TrajectoryRow | undefined): Promise<bigint> {
    if (child?.branch_point != null) return child.branch_point + 1n;
    const { engine, db } = this.#scope;
    const { rows } = await sql<{ last: bigint | null }>`
      select max(branch_point) as last from ${engine.sql.table('trajectories')}
      where tree = ${row.tree} and parent = ${row.key} and not purging`.execute(db);
    return (rows[0]?.last ?? row.next_step_number - 1n) + 1n;
  }
}

const ROW_COLUMNS = [
  'tree',
  'key',
  'id',
  'parent',
  'branch_point',
  'next_step_number',
  'run',
  'experiment',
  'hidden',
] as const;

async function lastKey({ engine, db, namespace }: ReadScope): Promise<bigint> {
  const { rows } = await sql<{ last: bigint | null }>`
    select max(key) as last from ${engine.sql.table('trajectories')} where namespace = ${namespace}`.execute(db);
  return rows[0]?.last ?? 0n;
}

function records(text: string): ArchivePart {
  return { kind: 'records', text };
}

function* linesIn(text: string): Generator<string, void, undefined> {
  for (let from = 0; from < text.length; ) {
    const end = text.indexOf('\n', from) + 1;
    yield text.slice(from, end);
    from = end;
  }
}

/** Joins lines to parts of bounded size. */
async function* collected(
  lines: AsyncIterable<string> | Iterable<string>,
): AsyncGenerator<ArchivePart, void, undefined> {
  let [some, bytes]: [string[], number] = [[], 0];
  for await (const line of lines) {
    some.push(line);
    bytes += line.length;
    if (bytes < RECORDS_BYTES) continue;
    yield records(some.join(''));
    [some, bytes] = [[], 0];
  }
  if (some.length > 0) yield records(some.join(''));
}
