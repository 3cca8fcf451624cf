import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../app.ts';
import { findTrajectory } from '../find.ts';
import { LookSchedule } from '../look_schedule.ts';
import { rowParts } from '../row_bytes.ts';
import { trajectoryDeleted } from '../steps/step_page.ts';
import { KnownTree, type NodeFacts } from './known_tree.ts';
import { TreeHints } from './tree_hints.ts';

export interface WatchTreeArgs {
  /** All trajectories of the tree of one, or some trajectories. */
  readonly of: { readonly treeOf: string } | { readonly ids: readonly string[] };
  /** Ends the wait when it is aborted. */
  readonly signal: AbortSignal;
}

/** One message; at most 1 MiB. */
export interface TreeShown extends NodeFacts {
  readonly rows: readonly Trajectory[];
  /** Ids of trajectories that were removed. */
  readonly removed: readonly string[];
  /** Whether the snapshot is complete with this message or was complete before. */
  readonly caughtUp: boolean;
}

/** Rows that one statement reads. A sweep reads as many of a tree at each poll. */
const ROWS = 500;

/**
 * M5: returns a snapshot, then the latest value of each row that changed, at least once and at most every `watchMs`.
 * Hints say which rows to read again. A sweep, a part of the tree at each poll, finds changes whose hints were lost.
 * Errors: TRAJECTORY_NOT_FOUND, TRAJECTORY_DELETED, SERVER_DRAINING.
 */
export async function* watchTree(
  app: App,
  caller: Caller,
  { of, signal }: WatchTreeArgs,
): AsyncGenerator<TreeShown, void, undefined> {
  const ids = 'ids' in of ? of.ids : [of.treeOf];
  const found = await Promise.all(ids.map((id) => findTrajectory(app, caller, id)));
  const chosen = 'ids' in of ? new Set(found.map(({ ref }) => ref.key)) : undefined;
  const hints = new TreeHints(chosen);
  const schedule = new LookSchedule(app.settings);
  // Subscribes before it reads the snapshot, so that changes during the read cause another look.
  const subscribe = (listener: () => void) =>
    app.changes.subscribeAll((key) => {
      if (hints.add(key)) listener();
    });
  schedule.listen(subscribe, app.drain, signal);
  const trees = [...new Set(found.map(({ ref }) => ref.tree))];
  const watched = trees.map((tree) => new WatchedTree(app, caller, { tree, chosen, hints }));
  try {
    for (let isFirst = true; !signal.aborted; isFirst = false) {
      app.drain.throwIfBegun();
      schedule.beginLook();
      const hinted = hints.take();
      for (const each of watched) {
        for await (const shown of each.look(hinted, isFirst)) {
          schedule.sent();
          yield { ...NOTHING, ...shown, caughtUp: !isFirst };
        }
      }
      if (isFirst || schedule.progressDue) {
        schedule.sent();
        yield { ...NOTHING, caughtUp: true };
      }
      if (watched.every(({ isEmpty }) => isEmpty)) throw trajectoryDeleted(ids[0]!);
      await schedule.nextLook();
    }
  } finally {
    schedule.stop();
  }
}

const NOTHING: TreeShown = Object.freeze({ rows: [], gains: new Map(), tags: new Map(), removed: [], caughtUp: false });

interface TreeScope {
  readonly tree: bigint;
  /** Keys of the watched trajectories. Undefined for all of the tree. */
  readonly chosen: ReadonlySet<bigint> | undefined;
  readonly hints: TreeHints;
}

interface TreePage {
  readonly rows: readonly Trajectory[];
  readonly facts: NodeFacts;
  /** Key of its last row. Undefined if there are no more rows. */
  readonly last: bigint | undefined;
}

/** The watched trajectories of one tree. */
class WatchedTree {
  readonly #app: App;
  readonly #namespace: string;
  readonly #scope: TreeScope;
  readonly #known = new KnownTree();
  /** Where the sweep continues, and when. */
  #swept: bigint | undefined;
  #sweepAt = 0;

  constructor(app: App, { namespace }: Caller, scope: TreeScope) {
    this.#app = app;
    this.#namespace = namespace;
    this.#scope = scope;
  }

  get isEmpty(): boolean {
    return this.#known.size === 0;
  }

  /** Reads the hinted rows, and at a poll a part of the tree; the whole tree for a snapshot. */
  async *look(hinted: readonly bigint[], isSnapshot: boolean): AsyncGenerator<Partial<TreeShown>, void, undefined> {
    if (isSnapshot) return yield* this.#snapshot();
    for (let at = 0; at < hinted.length; at += ROWS) {
      const keys = hinted.slice(at, at + ROWS);
      const rows = await this.#read({ limit: ROWS, after: undefined }, keys);
      const there = new Set(rows.map(({ ref }) => ref.key));
      const missing = keys.filter((key) => !there.has(key));
      for (const key of missing) if (!this.#known.has(key)) this.#scope.hints.ignore(key);
      yield* this.#show(rows, missing);
    }
    if (performance.now() >= this.#sweepAt) yield* this.#sweep();
  }

  /** Reads all rows. Each page is read while the one before it is sent. */
  async *#snapshot(): AsyncGenerator<Partial<TreeShown>, void, undefined> {
    let next: Promise<TreePage> | undefined = this.#readPage(undefined);
    while (next !== undefined) {
      const { rows, facts, last }: TreePage = await next;
      next = last === undefined ? undefined : this.#readPage(last);
      // The next round throws its error, unless the watcher has left.
      next?.catch(() => undefined);
      yield* this.#tell(rows, facts);
    }
    this.#sweepAt = performance.now() + this.#app.settings.pollMs;
  }

  async #readPage(after: bigint | undefined): Promise<TreePage> {
    const rows = await this.#read({ limit: ROWS, after }, this.#scope.chosen && [...this.#scope.chosen]);
    for (const { ref } of rows) this.#scope.hints.watch(ref.key);
    const last = rows.length < ROWS ? undefined : rows.at(-1)?.ref.key;
    return { rows, facts: await this.#readFacts(rows), last };
  }

  async *#sweep(): AsyncGenerator<Partial<TreeShown>, void, undefined> {
    const after = this.#swept;
    const rows = await this.#read({ limit: ROWS, after }, this.#scope.chosen && [...this.#scope.chosen]);
    this.#swept = rows.length < ROWS ? undefined : rows.at(-1)?.ref.key;
    this.#sweepAt = performance.now() + this.#app.settings.pollMs;
    yield* this.#show(rows, this.#known.missing(rows, after, this.#swept));
  }

  #read(page: { readonly limit: number; readonly after: bigint | undefined }, keys: readonly bigint[] | undefined) {
    return this.#app.store.listTree(this.#namespace, this.#scope.tree, page, keys);
  }

  async *#show(read: readonly Trajectory[], missing: readonly bigint[]): AsyncGenerator<Partial<TreeShown>> {
    for (const { ref } of read) this.#scope.hints.watch(ref.key);
    const dependents = this.#known.dependents(read);
    const others =
      dependents.length === 0 ? [] : await this.#read({ limit: dependents.length, after: undefined }, dependents);
    const all = [...read, ...others];
    yield* this.#tell(all, await this.#readFacts(all));
    const removed = this.#known.remove(missing);
    if (removed.length > 0) yield { removed };
  }

  async #readFacts(rows: readonly Trajectory[]): Promise<NodeFacts> {
    const visible = rows.filter(({ hidden }) => !hidden);
    const branches = visible.filter(({ parent }) => parent !== undefined);
    const { store } = this.#app;
    const [gains, tags] = await Promise.all([
      store.readGains(this.#namespace, this.#scope.tree, keysOf(branches)),
      store.readTreeTags(this.#namespace, this.#scope.tree, keysOf(visible)),
    ]);
    return { gains, tags };
  }

  *#tell(rows: readonly Trajectory[], { gains, tags }: NodeFacts): Generator<Partial<TreeShown>> {
    const news = this.#known.news(rows, { gains, tags }).map((row) => ({ row, tags: tags.get(row.ref.key) }));
    for (const part of rowParts(news)) yield { rows: part.map(({ row }) => row), gains, tags };
  }
}

function keysOf(rows: readonly Trajectory[]): bigint[] {
  return rows.map(({ ref }) => ref.key);
}
