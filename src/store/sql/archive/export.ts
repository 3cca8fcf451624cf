import { sql } from 'kysely';
import { ARCHIVE_FORMAT, ARCHIVE_VERSION, type ArchivePart, type ArchiveScope } from '../../../domain/archive.ts';
import { runNotFound, trajectoryNotFound } from '../../../domain/errors.ts';
import { visibleById } from '../by_id.ts';
import type { ReadScope } from '../transaction.ts';
import { KeySet } from '../usage/key_set.ts';
import { isSet } from '../values.ts';
import {
  catalogueLines,
  deletedLines,
  experimentLines,
  groupLines,
  mainLine,
  metricLines,
  pages,
  partsOfRun,
  runLines,
} from './export_rows.ts';
import { TrajectoryExport } from './export_trajectory.ts';
import { lineOf } from './row_ids.ts';

/** Bytes of one part of records, unless one record has more. */
const RECORDS_BYTES = 256 * 1024;

/** Trajectories whose places one statement reads. */
const PAGE = 500;

interface Place {
  readonly tree: bigint;
  readonly key: bigint;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
  readonly next_step_number: bigint;
  readonly run: bigint | null;
  readonly experiment: bigint | null;
  readonly id: string;
  readonly hidden: boolean | bigint | 0 | 1;
}

/**
 * V5: exports a namespace, a run or a trajectory. Each statement is short, and none waits for a writer. Trajectories that
 * are created after the export began are left out. Errors: RUN_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_CORRUPT,
 * STATE_CORRUPT.
 */
export async function* exportArchive(
  scope: ReadScope,
  what: ArchiveScope,
): AsyncGenerator<ArchivePart, void, undefined> {
  yield* new Export(scope, what).parts();
}

class Export {
  readonly #scope: ReadScope;
  readonly #what: ArchiveScope;
  readonly #trajectories: TrajectoryExport;
  /** Trajectories that were exported or left out. */
  readonly #done = new KeySet();
  #runs = 0n;
  #rollouts = 0n;

  constructor(scope: ReadScope, what: ArchiveScope) {
    this.#scope = scope;
    this.#what = what;
    this.#trajectories = new TrajectoryExport(scope);
  }

  async *parts(): AsyncGenerator<ArchivePart, void, undefined> {
    const run = await this.#runOf();
    const single = await this.#singleOf();
    const { namespace } = this.#scope;
    const horizon = await lastKey(this.#scope);
    const named = this.#what.kind === 'namespace' ? {} : { id: this.#what.id };
    yield records(
      lineOf('archive', {
        ...{ format: ARCHIVE_FORMAT, version: ARCHIVE_VERSION, namespace, scope: this.#what.kind, ...named },
      }),
    );
    if (single !== undefined) {
      yield* this.#belonging(single);
      yield* this.#withAncestors(single, single);
    } else {
      yield* collected(run === undefined ? catalogueLines(this.#scope) : partsOfRun(this.#scope, run));
      const runs = run === undefined ? sql`namespace = ${namespace} and not hidden` : sql`key = ${run}`;
      for await (const rows of pages(this.#scope, 'runs', runs)) {
        for (const { key } of rows) yield* this.#run(key as bigint);
      }
      yield* this.#all(run, horizon);
      for await (const rows of pages(this.#scope, 'runs', runs)) {
        for (const row of rows) yield* this.#rolloutsOf(row);
      }
      if (run === undefined) yield* collected(deletedLines(this.#scope));
    }
    const { trajectories, steps, states, leftOut } = this.#trajectories;
    const counts = Object.entries({ trajectories, steps, states, runs: this.#runs, rollouts: this.#rollouts });
    yield records(
      lineOf('end', { ...Object.fromEntries(counts.map(([name, count]) => [name, `${count}`])), left_out: leftOut }),
    );
  }

  async #runOf(): Promise<bigint | undefined> {
    if (this.#what.kind !== 'run') return undefined;
    const row = await visibleById(this.#scope, 'runs', this.#what.id).select('key').executeTakeFirst();
    if (row === undefined) throw runNotFound(this.#what.id);
    return row.key;
  }

  async #singleOf(): Promise<Place | undefined> {
    if (this.#what.kind !== 'trajectory') return undefined;
    const { id } = this.#what;
    const row = await visibleById(this.#scope, 'trajectories', id).select(PLACE_COLUMNS).executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(id);
    return row;
  }

  /** The run and the experiment of a single trajectory, without the other parts of the run. */
  async *#belonging({ run, experiment }: Place): AsyncGenerator<ArchivePart, void, undefined> {
    if (experiment !== null) yield* collected(experimentLines(this.#scope, sql`key = ${experiment}`));
    if (run !== null) yield* this.#runAlone(run);
  }

  async *#run(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    if (this.#what.kind === 'run') yield* this.#parentRun(key);
    let exists = false;
    const scope = this.#scope;
    yield* collected(
      (async function* () {
        exists = yield* runLines(scope, key, false);
        if (exists) yield* metricLines(scope, key);
      })(),
    );
    if (exists) this.#runs += 1n;
  }

  /** A branched run needs the runs above it, but not what these contain. */
  async *#parentRun(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    const query = this.#scope.db.selectFrom('runs').select('parent').where('key', '=', key);
    const parent = (await query.executeTakeFirst())?.parent ?? null;
    if (parent !== null) yield* this.#runAlone(parent);
  }

  async *#runAlone(key: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    yield* this.#parentRun(key);
    const { engine } = this.#scope;
    const experiment = sql`(select experiment from ${engine.table('runs')} where key = ${key})`;
    yield* collected(experimentLines(this.#scope, sql`key = ${experiment}`));
    yield* collected(runLines(this.#scope, key, true));
  }

  async *#rolloutsOf(run: Readonly<Record<string, unknown>>): AsyncGenerator<ArchivePart, void, undefined> {
    const scope = this.#scope;
    let count = 0n;
    yield* collected(
      (async function* () {
        yield await mainLine(scope, run);
        count = yield* groupLines(scope, run.key as bigint);
      })(),
    );
    this.#rollouts += count;
  }

  /** Trajectories in order of key: parents come before their branches. */
  async *#all(run: bigint | undefined, horizon: bigint): AsyncGenerator<ArchivePart, void, undefined> {
    for (let after = 0n; ; ) {
      const { engine, db, namespace } = this.#scope;
      const of = run === undefined ? sql`namespace = ${namespace}` : sql`run = ${run} and not hidden`;
      const { rows } = await sql<Place>`
        select ${sql.join(PLACE_COLUMNS.map((name) => sql.ref(name)))} from ${engine.table('trajectories')} as t
        where ${of} and key > ${after} and key <= ${horizon} and not purging
          and not exists (select 1 from ${engine.table('trajectory_imports')} as i
            where i.tree = t.tree and i.trajectory = t.key)
        order by key limit ${sql.lit(PAGE)}`.execute(db);
      for (const place of rows) yield* this.#withAncestors(place, undefined);
      if (rows.length < PAGE) return;
      after = rows.at(-1)!.key;
    }
  }

  /** `leaf`: the only trajectory that was selected, so that ancestors end at the branch points of its lineage. */
  async *#withAncestors(place: Place, leaf: Place | undefined): AsyncGenerator<ArchivePart, void, undefined> {
    const chain: { readonly place: Place; readonly end: bigint; readonly hidden: boolean }[] = [];
    let child: Place | undefined;
    for (let at: Place | undefined = place; at !== undefined && !this.#done.has(at.key); ) {
      const isSelected = at === place && !isSet(at.hidden);
      const end = isSelected ? at.next_step_number : await this.#neededEnd(at, leaf === undefined ? undefined : child);
      chain.push({ place: at, end, hidden: !isSelected });
      child = at;
      at = at.parent === null ? undefined : await this.#placeOf(at.tree, at.parent);
    }
    for (const { place: each, end, hidden } of chain.reverse()) {
      this.#done.add(each.key);
      yield* this.#trajectories.export({ tree: each.tree, key: each.key, id: each.id, end, hidden });
    }
  }

  async #placeOf(tree: bigint, key: bigint): Promise<Place | undefined> {
    const { db } = this.#scope;
    const query = db.selectFrom('trajectories').select(PLACE_COLUMNS).where('tree', '=', tree).where('key', '=', key);
    return query.where('purging', '=', 0).executeTakeFirst();
  }

  /** Returns the end of the steps of an ancestor that exported branches need. */
  async #neededEnd(place: Place, child: Place | undefined): Promise<bigint> {
    if (child?.branch_point != null) return child.branch_point + 1n;
    const { engine, db } = this.#scope;
    const { rows } = await sql<{ last: bigint | null }>`
      select max(branch_point) as last from ${engine.table('trajectories')}
      where tree = ${place.tree} and parent = ${place.key} and not purging`.execute(db);
    return (rows[0]?.last ?? place.next_step_number - 1n) + 1n;
  }
}

const PLACE_COLUMNS = [
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
    select max(key) as last from ${engine.table('trajectories')} where namespace = ${namespace}`.execute(db);
  return rows[0]?.last ?? 0n;
}

function records(text: string): ArchivePart {
  return { kind: 'records', text };
}

/** Joins lines to parts of bounded size. */
async function* collected(lines: AsyncIterable<string>): AsyncGenerator<ArchivePart, void, undefined> {
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
