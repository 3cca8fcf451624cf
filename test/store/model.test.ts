import { randomUUID } from 'node:crypto';
import process from 'node:process';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { sharedSteps } from '../../src/domain/lineage.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { Scene, wordOf } from './scene.ts';
import { countRows } from './sql.ts';

/** The naive model: a trajectory is a list of words, a branch copies the front of a list. */
interface Naive {
  readonly row: Trajectory;
  readonly words: string[];
  readonly rewards: (number | undefined)[];
  /** Who owns each step. */
  readonly owners: Naive[];
  readonly parent: Naive | undefined;
  readonly branchPoint: number;
  sealed: boolean;
  hidden: boolean;
}

type Operation =
  | { readonly kind: 'create'; readonly words: number }
  | { readonly kind: 'append'; readonly at: number; readonly rewards: readonly (number | undefined)[] }
  | { readonly kind: 'replay'; readonly at: number; readonly from: number }
  | { readonly kind: 'branch'; readonly at: number; readonly step: number }
  | { readonly kind: 'seal'; readonly at: number }
  | { readonly kind: 'merge'; readonly at: number; readonly rest: boolean }
  | { readonly kind: 'delete'; readonly at: number; readonly mode: OnBranches }
  | { readonly kind: 'read'; readonly at: number; readonly from: number; readonly to: number };

/**
 * Includes rewards that do not count, and rewards whose sums lose small values. Infinities are rare, since a sum stays
 * infinite.
 */
const reward = fc.oneof(
  { weight: 40, arbitrary: fc.constantFrom(undefined, Number.NaN, -0, 1, 0.1, -0.3, 1e16, -1e16, 5e-324) },
  { weight: 1, arbitrary: fc.constantFrom(1e308, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY) },
);

/** `FC_RUNS=1000` runs more cases. */
const RUNS = Number(process.env.FC_RUNS ?? 25);

const at = fc.nat(30);
const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('create' as const), words: fc.nat(3) }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('append' as const),
      at,
      rewards: fc.array(reward, { minLength: 1, maxLength: 4 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('replay' as const), at, from: fc.nat(20) }) },
  { weight: 8, arbitrary: fc.record({ kind: fc.constant('branch' as const), at, step: fc.nat(20) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('seal' as const), at }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('merge' as const), at, rest: fc.boolean() }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('delete' as const),
      at,
      mode: fc.constantFrom<OnBranches>('REFUSE', 'CASCADE', 'KEEP_SHARED', 'KEEP_SHARED', 'KEEP_SHARED'),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('read' as const), at, from: fc.nat(20), to: fc.nat(20) }) },
);

/** Adds from left to right, without missing values and NaN. Undefined if no value counts. */
function sumOf(rewards: readonly (number | undefined)[]): number | undefined {
  const counted = rewards.filter((each) => each !== undefined && !Number.isNaN(each)) as number[];
  return counted.length === 0 ? undefined : counted.reduce((sum, each) => sum + each, 0);
}

/** Applies every operation to the store and to the model, and compares the results. */
class Twin {
  readonly #scene: Scene;
  #all: Naive[] = [];
  #words = 0;

  constructor(scene: Scene) {
    this.#scene = scene;
  }

  async do(operation: Operation): Promise<void> {
    if (operation.kind === 'create') return this.#create(operation.words);
    if (operation.kind === 'merge') return this.#merge(operation.at, operation.rest);
    const living = this.#living();
    const target = living[operation.at % living.length];
    if (target === undefined) return;
    if (operation.kind === 'append') await this.#append(target, operation.rewards);
    else if (operation.kind === 'replay') await this.#replay(target, operation.from);
    else if (operation.kind === 'branch') await this.#branch(target, operation.step);
    else if (operation.kind === 'seal') await this.#seal(target);
    else if (operation.kind === 'delete') await this.#delete(target, operation.mode);
    else await this.#read(target, operation.from, operation.to);
  }

  /** Checks that everything visible is as in the model. */
  async compare(): Promise<void> {
    const scene = this.#scene;
    const living = this.#living();
    const listed = await scene.store.listTrajectories(scene.namespace, {}, { limit: 1000, after: undefined });
    expect(listed.map(({ id }) => id).sort()).toEqual(living.map(({ row }) => row.id).sort());
    for (const naive of living) {
      const steps = await scene.steps(naive.row, 'FULL', 3);
      expect(steps.map(({ step }) => wordOf(step))).toEqual(naive.words);
      expect(steps.map(({ owner }) => owner.key)).toEqual(naive.owners.map(({ row }) => row.ref.key));
      const now = await scene.get(naive.row.id);
      expect(now.status).toBe(naive.sealed ? 'COMPLETED' : 'RUNNING');
      expect(now.rewardSum).toBe(sumOf(naive.rewards) ?? 0);
      expect(now.branchRewardSum).toBe(sumOf(naive.rewards.slice(naive.branchPoint + 1)));
    }
    for (const removed of this.#all.filter(({ hidden }) => hidden))
      expect(await scene.isThere(removed.row.id)).toBe(false);
    await this.#compareTrees();
    const own = this.#all.map((naive) => this.#ownEnd(naive));
    this.rows = { trajectories: this.#all.length, steps: own.reduce((sum, n) => sum + n, 0) };
  }

  /** Rows that the tables should contain. */
  rows = { trajectories: 0, steps: 0 };

  #living(): Naive[] {
    return this.#all.filter(({ hidden }) => !hidden);
  }

  #children(of: Naive): Naive[] {
    return this.#all.filter(({ parent }) => parent === of);
  }

  /** Number of own steps stored: a hidden trajectory is trimmed to its highest branch point. */
  #ownEnd(naive: Naive): number {
    const begin = naive.parent === undefined ? 0 : naive.branchPoint + 1;
    if (!naive.hidden) return naive.words.length - begin;
    return Math.max(...this.#children(naive).map(({ branchPoint }) => branchPoint)) + 1 - begin;
  }

  async #create(words: number): Promise<void> {
    const naive: Naive = {
      row: await this.#scene.create(),
      words: [],
      rewards: [],
      owners: [],
      parent: undefined,
      branchPoint: -1,
      sealed: false,
      hidden: false,
    };
    this.#all.push(naive);
    if (words > 0)
      await this.#append(
        naive,
        Array.from({ length: words }, () => 1),
      );
  }

  async #append(naive: Naive, rewards: readonly (number | undefined)[]): Promise<void> {
    const words = rewards.map(() => `w${this.#words++}`);
    const steps = words.map((word, i) => wordStep(BigInt(naive.words.length + i), word, { reward: rewards[i] }));
    const outcome = await this.#attempt(this.#scene.append(naive.row, steps));
    expect(outcome).toBe(naive.sealed ? 'TRAJECTORY_SEALED' : 'done');
    if (naive.sealed) return;
    naive.words.push(...words);
    naive.rewards.push(...rewards);
    naive.owners.push(...words.map(() => naive));
  }

  async #replay(naive: Naive, from: number): Promise<void> {
    const steps = naive.words
      .slice(from)
      .map((word, i) => wordStep(BigInt(from + i), word, { reward: naive.rewards[from + i] }));
    if (steps.length === 0) return;
    expect((await this.#scene.append(naive.row, steps)).duplicates).toBe(steps.length);
    const other = wordStep(BigInt(from), 'other');
    expect(await this.#attempt(this.#scene.append(naive.row, [other]))).toBe('STEP_CONFLICT');
  }

  async #branch(source: Naive, step: number): Promise<void> {
    // Now and then one step beyond the end is tried.
    const n = step % (source.words.length + 1);
    const id = randomUUID();
    const outcome = await this.#attempt(this.#scene.branch(source.row, BigInt(n), { id }));
    expect(outcome).toBe(n < source.words.length ? 'done' : 'BRANCH_POINT_BEYOND_END');
    if (outcome !== 'done') return;
    const row = await this.#scene.get(id);
    const parent = source.owners[n];
    expect(row.parent).toEqual({ key: parent?.row.ref.key, id: parent?.row.id, branchPoint: BigInt(n) });
    this.#all.push({
      row,
      words: source.words.slice(0, n + 1),
      rewards: source.rewards.slice(0, n + 1),
      owners: source.owners.slice(0, n + 1),
      parent,
      branchPoint: n,
      sealed: false,
      hidden: false,
    });
  }

  async #seal(naive: Naive): Promise<void> {
    await this.#scene.seal(naive.row);
    naive.sealed = true;
  }

  /** Hidden trajectories are merged too. Nothing that is read changes. */
  async #merge(at: number, rest: boolean): Promise<void> {
    const merged = this.#all[at % Math.max(this.#all.length, 1)];
    if (merged === undefined) return;
    expect(await this.#scene.store.mergeSteps([{ ref: merged.row.ref, rest }])).toEqual([]);
  }

  async #delete(naive: Naive, mode: OnBranches): Promise<void> {
    const before = this.#all;
    const refused = mode === 'REFUSE' && this.#children(naive).length > 0;
    const hides = mode === 'KEEP_SHARED' && this.#children(naive).length > 0;
    if (hides) naive.hidden = true;
    else if (!refused) this.#purge(naive);
    try {
      const deletion = await this.#scene.delete(naive.row, mode);
      expect(refused).toBe(false);
      expect(deletion.keptShared).toBe(hides);
      expect(Number(deletion.purged)).toBe(before.length - this.#all.length);
    } catch (error) {
      if (!(error instanceof AnabranchError)) throw error;
      expect([error.reason, refused]).toEqual(['HAS_BRANCHES', true]);
    }
  }

  /** Removes a trajectory and all below it, then hidden ancestors without remaining branches. */
  #purge(naive: Naive): void {
    const removed = new Set<Naive>([naive]);
    for (const each of this.#all) if (each.parent !== undefined && removed.has(each.parent)) removed.add(each);
    this.#all = this.#all.filter((each) => !removed.has(each));
    const { parent } = naive;
    if (parent?.hidden === true && this.#children(parent).length === 0) this.#purge(parent);
  }

  async #read(naive: Naive, a: number, b: number): Promise<void> {
    const [from, to] = [Math.min(a, b), Math.max(a, b)];
    const { tree } = naive.row.ref;
    const lineage = await this.#scene.lineage(naive.row);
    const range = { from: BigInt(from), to: BigInt(to), maxSteps: 1000, maxBytes: 1e6 };
    const steps = await this.#scene.store.readSteps(this.#scene.namespace, tree, lineage, range, 'FULL');
    expect(steps.map(({ step }) => wordOf(step))).toEqual(naive.words.slice(from, to));
    const other = this.#living()[b % this.#living().length] as Naive;
    const differ = naive.owners.findIndex((owner, i) => owner !== other.owners[i]);
    const shared = sharedSteps(lineage, await this.#scene.lineage(other.row));
    expect(Number(shared)).toBe(differ === -1 ? naive.words.length : differ);
  }

  async #compareTrees(): Promise<void> {
    const trees = new Set(this.#all.map(({ row }) => row.ref.tree));
    for (const tree of trees) {
      const rows = await this.#scene.store.listTree(this.#scene.namespace, tree, { limit: 1000, after: undefined });
      const expected = this.#all.filter(({ row }) => row.ref.tree === tree);
      const told = rows.map(({ id, hidden }) => `${id} ${hidden}`);
      expect(told).toEqual(expected.map(({ row, hidden }) => `${row.id} ${hidden}`));
    }
  }

  #attempt(call: Promise<unknown>): Promise<string> {
    return call.then(
      () => 'done',
      (error: unknown) => {
        if (error instanceof AnabranchError) return error.reason;
        throw error;
      },
    );
  }
}

describeStore('the store compared with a naive list-copy model', (on) => {
  it(
    'O1, O2, B1, B2, W2: random appends, nested branches, merges, seals and deletes in three modes give the same result',
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(operation, { minLength: 20, maxLength: 50, size: 'max' }), async (operations) => {
          const scene = new Scene(on.store);
          const twin = new Twin(scene);
          await twin.do({ kind: 'create', words: 3 });
          for (const each of operations) await twin.do(each);
          await twin.compare();
          expect(await countRows(on.sql, scene.namespace)).toMatchObject(twin.rows);
        }),
        { numRuns: RUNS },
      );
    },
    60_000 + RUNS * 1_000,
  );
});
