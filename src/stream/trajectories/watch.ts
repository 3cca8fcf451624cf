import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { App } from '../app.ts';
import { findTrajectory } from '../find.ts';
import { rowParts } from '../row_bytes.ts';
import { trajectoryDeleted } from '../steps/step_page.ts';
import type { Subject } from '../watch.ts';
import { KnownTree, type NodeFacts } from './known_tree.ts';
import { type HintedTrees, TreeHints } from './tree_hints.ts';

/** All trajectories of the tree of one, or some trajectories. */
export type WatchedTreesArgs = { readonly treeOf: string } | { readonly ids: readonly string[] };

/** What changed in watched trajectories, or a part of it; less than 1 MiB. */
export interface TreeNews extends NodeFacts {
  readonly rows: readonly Trajectory[];
  /** Ids of trajectories that were removed. */
  readonly removed: readonly string[];
}

/** Rows that one statement reads. A sweep reads as many of a tree at each poll. */
const ROWS = 500;

/**
 * A watched tree, or watched trajectories of any trees (M5). Hints say which rows to read again. A sweep, a part of the
 * tree at each poll, finds changes whose hints were lost. Errors: TRAJECTORY_DELETED.
 */
export class WatchedTrees implements Subject<TreeNews> {
  readonly #changes: App['changes'];
  readonly #firstId: string;
  readonly #hints: TreeHints;
  readonly #trees: readonly WatchedTree[];
  #isSnapshot = true;

  /** Errors: TRAJECTORY_NOT_FOUND. */
  static async open(app: App, caller: Caller, args: WatchedTreesArgs): Promise<WatchedTrees> {
    const ids = 'ids' in args ? args.ids : [args.treeOf];
    const found = await Promise.all(ids.map((id) => findTrajectory(app, caller, id)));
    const chosen = 'ids' in args ? new Set(found.map(({ ref }) => ref.key)) : undefined;
    const hints = new TreeHints(chosen);
    const trees = [...new Set(found.map(({ ref }) => ref.tree))];
    const watched = trees.map((tree) => new WatchedTree(app, caller, { tree, chosen, hints }));
    return new WatchedTrees(app.changes, ids[0]!, hints, watched);
  }

  private constructor(changes: App['changes'], firstId: string, hints: TreeHints, trees: readonly WatchedTree[]) {
    this.#changes = changes;
    this.#firstId = firstId;
    this.#hints = hints;
    this.#trees = trees;
  }

  subscribe(listener: () => void): () => void {
    return this.#changes.onAnyTrajectory((key) => {
      if (this.#hints.add(key)) listener();
    });
  }

  async *look(): AsyncGenerator<TreeNews, void, undefined> {
    const hinted = this.#hints.take();
    for (const tree of this.#trees) {
      const looked = this.#isSnapshot ? tree.snapshot() : tree.look(hinted);
      for await (const news of looked) yield { ...NOTHING, ...news };
    }
    this.#isSnapshot = false;
  }

  hasEnded(): boolean {
    if (this.#trees.every(({ isEmpty }) => isEmpty)) throw trajectoryDeleted(this.#firstId);
    return false;
  }
}

const NOTHING: TreeNews = Object.freeze({ rows: [], gains: new Map(), tags: new Map(), removed: [] });

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
  /** Where the sweep continues. */
  #swept: bigint | undefined;

  constructor(app: App, { namespace }: Caller, scope: TreeScope) {
    this.#app = app;
    this.#namespace = namespace;
    this.#scope = scope;
  }

  get isEmpty(): boolean {
    return this.#known.size === 0;
  }

  /** Reads the hinted rows, and at a poll a part of the tree. */
  async *look({ changed, isPoll }: HintedTrees): AsyncGenerator<Partial<TreeNews>, void, undefined> {
    for (let at = 0; at < changed.length; at += ROWS) {
      const keys = changed.slice(at, at + ROWS);
      const rows = await this.#read({ limit: ROWS, after: undefined }, keys);
      const there = new Set(rows.map(({ ref }) => ref.key));
      const missing = keys.filter((key) => !there.has(key));
      for (const key of missing) if (!this.#known.has(key)) this.#scope.hints.ignore(key);
      yield* this.#show(rows, missing);
    }
    if (isPoll) yield* this.#sweep();
  }

  /** Reads all rows. Each page is read while the one before it is sent. */
  async *snapshot(): AsyncGenerator<Partial<TreeNews>, void, undefined> {
    let next: Promise<TreePage> | undefined = this.#readPage(undefined);
    while (next !== undefined) {
      const { rows, facts, last }: TreePage = await next;
      next = last === undefined ? undefined : this.#readPage(last);
      // The next round throws its error, unless the watcher has left.
      next?.catch(() => undefined);
      yield* this.#tell(rows, facts);
    }
  }

  async #readPage(after: bigint | undefined): Promise<TreePage> {
    const rows = await this.#read({ limit: ROWS, after }, this.#scope.chosen && [...this.#scope.chosen]);
    const last = rows.length < ROWS ? undefined : rows.at(-1)?.ref.key;
    return { rows, facts: await this.#readFacts(rows), last };
  }

  async *#sweep(): AsyncGenerator<Partial<TreeNews>, void, undefined> {
    const after = this.#swept;
    const rows = await this.#read({ limit: ROWS, after }, this.#scope.chosen && [...this.#scope.chosen]);
    this.#swept = rows.length < ROWS ? undefined : rows.at(-1)?.ref.key;
    yield* this.#show(rows, this.#known.missing(rows, after, this.#swept));
  }

  #read(page: { readonly limit: number; readonly after: bigint | undefined }, keys: readonly bigint[] | undefined) {
    return this.#app.store.listTree(this.#namespace, this.#scope.tree, page, keys);
  }

  async *#show(read: readonly Trajectory[], missing: readonly bigint[]): AsyncGenerator<Partial<TreeNews>> {
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

  *#tell(rows: readonly Trajectory[], { gains, tags }: NodeFacts): Generator<Partial<TreeNews>> {
    const news = this.#known.news(rows, { gains, tags }).map((row) => ({ row, tags: tags.get(row.ref.key) }));
    for (const part of rowParts(news)) yield { rows: part.map(({ row }) => row), gains, tags };
  }
}

function keysOf(rows: readonly Trajectory[]): bigint[] {
  return rows.map(({ ref }) => ref.key);
}
