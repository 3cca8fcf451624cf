import { randomUUID } from 'node:crypto';
import process from 'node:process';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { sharedSteps } from '../../src/domain/lineage.ts';
import type { RetentionPart, RetentionPolicy } from '../../src/domain/retention.ts';
import { isKept, type NewState } from '../../src/domain/step.ts';
import { compareTrajectories } from '../../src/service/trajectory/comparison.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import type { App } from '../../src/stream/app.ts';
import { createTestApp } from '../service/on_app.ts';
import { dose } from '../support/dose.ts';
import { smallRef, stateRef, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { LiveFollower } from './live_follower.ts';
import {
  isFound,
  NAMES,
  type Naive,
  type NaiveStates,
  NaiveTrees,
  type StateRules,
  stateFor,
  type TreeRules,
} from './naive_trees.ts';
import { describeStore, openOn } from './on_store.ts';
import { readWhole, Scene, wordOf } from './scene.ts';
import { countRows } from './sql.ts';
import { checkChains, storedStates } from './state_chains.ts';
import { expectVerified } from './verified.ts';

type Operation =
  | { readonly kind: 'create'; readonly words: number }
  | {
      readonly kind: 'append';
      readonly at: number;
      readonly rewards: readonly (number | undefined)[];
      /** Undefined: without states. */
      readonly seed: number | undefined;
    }
  | {
      readonly kind: 'attach';
      readonly at: number;
      readonly step: number;
      readonly name: string;
      readonly seed: number;
    }
  | { readonly kind: 'tag'; readonly at: number; readonly step: number }
  | { readonly kind: 'prune'; readonly rules: StateRules }
  | { readonly kind: 'retire'; readonly rules: TreeRules }
  | { readonly kind: 'collect' }
  | { readonly kind: 'follow'; readonly at: number }
  | { readonly kind: 'watch'; readonly at: number }
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
const RUNS = Number(process.env.FC_RUNS ?? dose(6, 50));

const at = fc.nat(30);
const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('create' as const), words: fc.nat(3) }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('append' as const),
      at,
      rewards: fc.array(reward, { minLength: 1, maxLength: 4 }),
      seed: fc.option(fc.nat(6), { nil: undefined }),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('attach' as const),
      at,
      step: fc.nat(20),
      name: fc.constantFrom(...NAMES),
      seed: fc.nat(6),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('tag' as const), at, step: fc.nat(20) }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('prune' as const),
      rules: fc.record({
        names: fc.subarray([...NAMES], { minLength: 1 }),
        keepLast: fc.nat(3),
        keepEvery: fc.constantFrom(0, 2, 3),
        keepTagged: fc.boolean(),
        keepBranchPoints: fc.boolean(),
      }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('retire' as const),
      rules: fc.record({
        keepTagged: fc.boolean(),
        onBranches: fc.constantFrom<OnBranches>('REFUSE', 'CASCADE', 'KEEP_SHARED'),
      }),
    }),
  },
  { weight: 2, arbitrary: fc.constant({ kind: 'collect' as const }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('follow' as const), at }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('watch' as const), at }) },
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
  readonly #app: App;
  readonly #trees = new NaiveTrees();
  readonly #followers = new Map<Naive, LiveFollower>();
  #words = 0;

  /** Stores that merge while the operations go on. */
  readonly #mergers: readonly Pick<Store, 'mergeSteps'>[];
  readonly #merging: Promise<unknown>[] = [];

  constructor(app: App, mergers: readonly Pick<Store, 'mergeSteps'>[] = []) {
    this.#app = app;
    this.#scene = new Scene(app.store);
    this.#mergers = mergers;
  }

  get namespace(): string {
    return this.#scene.namespace;
  }

  /** Ends the followers, which must not outlive the trajectories of the next case. */
  async stop(): Promise<void> {
    for (const follower of this.#followers.values()) await follower.stop();
  }

  async do(operation: Operation): Promise<void> {
    const { kind } = operation;
    if (kind === 'create') return this.#create(operation.words);
    if (kind === 'merge') return this.#merge(operation.at, operation.rest);
    if (kind === 'prune') return this.#prune(operation.rules);
    if (kind === 'retire') return this.#retire(operation.rules);
    if (kind === 'collect') return collectUnused(this.#scene.store);
    const { living } = this.#trees;
    const target = living[operation.at % living.length];
    if (target === undefined) return;
    if (kind === 'append') await this.#append(target, operation.rewards, operation.seed);
    else if (kind === 'replay') await this.#replay(target, operation.from);
    else if (kind === 'branch') await this.#branch(target, operation.step);
    else if (kind === 'seal') await this.#seal(target);
    else if (kind === 'attach') await this.#attach(target, operation);
    else if (kind === 'tag') await this.#tag(target, operation.step);
    else if (kind === 'follow') await this.#follow(target);
    else if (kind === 'watch') await this.#watch(target);
    else if (kind === 'delete') await this.#delete(target, operation.mode);
    else await this.#read(target, operation.from, operation.to);
  }

  /** Checks that everything visible is as in the model. */
  async compare(): Promise<void> {
    const scene = this.#scene;
    await Promise.all(this.#merging);
    const { living, all } = this.#trees;
    const listed = await scene.store.listTrajectories(scene.namespace, {}, { limit: 1000, after: undefined });
    expect(listed.map(({ id }) => id).sort()).toEqual(living.map(({ row }) => row.id).sort());
    for (const naive of living) {
      const steps = await scene.steps(naive.row, 'FULL', 3);
      expect(steps.map(({ step }) => wordOf(step))).toEqual(naive.words);
      expect(steps.map(({ owner }) => owner.key)).toEqual(naive.owners.map(({ row }) => row.ref.key));
      expect(steps.map(({ step }) => step.states.map((each) => `${each.name} ${each.digest} ${isKept(each)}`))).toEqual(
        naive.states.map(stateTexts),
      );
      const now = await scene.get(naive.row.id);
      expect(now.status).toBe(naive.sealed ? 'COMPLETED' : 'RUNNING');
      expect(now.rewardSum).toBe(sumOf(naive.rewards) ?? 0);
      expect(now.branchRewardSum).toBe(sumOf(naive.rewards.slice(naive.branchPoint + 1)));
      await this.#compareStates(naive);
      await this.#follow(naive);
    }
    await this.#compareFollowers();
    for (const removed of all.filter(({ hidden }) => hidden)) expect(await scene.isThere(removed.row.id)).toBe(false);
    await this.#compareTrees();
    const own = all.map((naive) => this.#trees.ownEnd(naive) - (naive.branchPoint + 1));
    this.rows = { trajectories: all.length, steps: own.reduce((sum, n) => sum + n, 0) };
  }

  /** Rows that the tables should contain. */
  rows = { trajectories: 0, steps: 0 };

  async mergeAll(): Promise<void> {
    for (const { row } of this.#trees.all)
      expect(await this.#scene.store.mergeSteps([{ ref: row.ref, rest: true }])).toEqual([]);
  }

  async deleteAll(): Promise<void> {
    for (const naive of this.#trees.living) await this.#delete(naive, 'KEEP_SHARED');
    await collectUnused(this.#scene.store);
  }

  async #create(words: number): Promise<void> {
    const naive = this.#trees.add(await this.#scene.create());
    const rewards = Array.from({ length: words }, () => 1);
    if (words > 0) await this.#append(naive, rewards, undefined);
  }

  async #append(naive: Naive, rewards: readonly (number | undefined)[], seed: number | undefined): Promise<void> {
    const words = rewards.map(() => `w${this.#words++}`);
    const added = rewards.map((_, i) => statesOf(seed === undefined ? undefined : seed + i));
    const steps = words.map((word, i) =>
      wordStep(BigInt(naive.words.length + i), word, { reward: rewards[i], states: refsTo(added[i]!) }),
    );
    const states = [...new Map(added.flatMap((each) => rowsIn(each).map((state) => [state.digest, state]))).values()];
    const outcome = await this.#attempt(this.#scene.append(naive.row, steps, { states }));
    expect(outcome).toBe(naive.sealed ? 'TRAJECTORY_SEALED' : 'done');
    if (naive.sealed) return;
    naive.words.push(...words);
    naive.rewards.push(...rewards);
    naive.states.push(...added);
    naive.owners.push(...words.map(() => naive));
  }

  /** Sends steps as they were sent first: what was pruned or attached since makes no difference. */
  async #replay(naive: Naive, from: number): Promise<void> {
    const sent = naive.states.slice(from).map((each) => new Map([...each].filter(([, { attached }]) => !attached)));
    const states = sent.flatMap(rowsIn);
    const steps = naive.words.slice(from).map((word, i) => {
      return wordStep(BigInt(from + i), word, { reward: naive.rewards[from + i], states: refsTo(sent[i]!) });
    });
    if (steps.length === 0) return;
    const distinct = [...new Map(states.map((state) => [state.digest, state])).values()];
    expect((await this.#scene.append(naive.row, steps, { states: distinct })).duplicates).toBe(steps.length);
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
    this.#trees.branch(row, source, n);
  }

  async #seal(naive: Naive): Promise<void> {
    await this.#scene.seal(naive.row);
    naive.sealed = true;
  }

  /** Attaches the state that was pruned, another one of the same name, or a new one. */
  async #attach(naive: Naive, { step, name, seed }: Extract<Operation, { kind: 'attach' }>): Promise<void> {
    const begin = naive.branchPoint + 1;
    if (naive.words.length === begin) return;
    const number = begin + (step % (naive.words.length - begin));
    const there = naive.states[number]!.get(name);
    const state = there !== undefined && seed > 1 ? there.state : stateFor(name, seed);
    const { id, ref } = naive.row;
    const fence = { trajectoryId: id, uid: undefined, writerEpoch: undefined };
    const mediaType = 'application/octet-stream';
    const attaching = { ...fence, stepNumber: BigInt(number), name, ...state, mediaType };
    const attached = this.#scene.store.attachState(this.#scene.caller, attaching);
    const outcome = await this.#attempt(
      attached.then(({ duplicate }) => expect(duplicate).toBe(there?.pruned === false)),
    );
    expect([ref, outcome]).toEqual([
      ref,
      there === undefined || there.state.digest === state.digest ? 'done' : 'STATE_CONFLICT',
    ]);
    if (there === undefined) naive.states[number]!.set(name, { state, pruned: false, attached: true });
    else if (outcome === 'done') there.pruned = false;
  }

  async #tag(naive: Naive, step: number): Promise<void> {
    if (naive.words.length === 0) return;
    const number = step % naive.words.length;
    if (naive.tags.has(number)) return;
    await this.#scene.store.setTag(this.#scene.namespace, naive.row.id, `tag-${number}`, BigInt(number), -1n);
    naive.tags.add(number);
  }

  /** Applies a policy for states, after its plan, which must list the same. */
  async #prune({ keepEvery, ...rules }: StateRules): Promise<void> {
    const more = { mediaTypes: [], olderThan: 0n, keepTerminal: false };
    const parts = await this.#apply({ states: { ...rules, keepEvery: BigInt(keepEvery), ...more } });
    const pruned = parts.flatMap((part) =>
      part.pruned.map(({ stepNumber, names }) => `${part.trajectoryId} ${stepNumber} ${[...names].sort().join()}`),
    );
    expect(pruned.sort()).toEqual(this.#trees.prune({ keepEvery, ...rules }).sort());
  }

  /** Applies a policy for ended trajectories, after its plan, which must list the same. */
  async #retire(rules: TreeRules): Promise<void> {
    const more = { labels: new Map(), keepLast: 0, olderThan: 0n };
    const parts = await this.#apply({ trajectories: { statuses: ['COMPLETED'], ...more, ...rules } });
    const visible = new Set(this.#trees.living.map(({ row }) => row.id));
    this.#trees.retire(rules);
    for (const { row } of this.#trees.living) visible.delete(row.id);
    const deleted = parts
      .filter(({ deletedFrom }) => deletedFrom !== undefined)
      .map(({ trajectoryId }) => trajectoryId);
    expect([...visible].filter((id) => !deleted.includes(id))).toEqual([]);
  }

  async #apply(policy: RetentionPolicy): Promise<RetentionPart[]> {
    const { store, namespace } = this.#scene;
    const partsOf = async (how: Parameters<typeof store.retain>[2]) => {
      const { asOf, parts } = await store.retain(namespace, policy, how);
      const found: RetentionPart[] = [];
      for await (const part of parts) found.push(part);
      return { asOf, found };
    };
    const { asOf, found } = await partsOf({ apply: false });
    const applied = (await partsOf({ apply: true, asOf })).found;
    const withoutSize = (parts: readonly RetentionPart[]) => parts.map((part) => ({ ...part, size: undefined }));
    expect(withoutSize(applied)).toEqual(withoutSize(found));
    return applied;
  }

  /** Hidden trajectories are merged too. Nothing that is read changes. */
  async #merge(at: number, rest: boolean): Promise<void> {
    const merged = this.#trees.all[at % Math.max(this.#trees.all.length, 1)];
    if (merged === undefined) return;
    const request = { ref: merged.row.ref, rest };
    if (this.#mergers.length === 0) expect(await this.#scene.store.mergeSteps([request])).toEqual([]);
    else this.#merging.push(...this.#mergers.map((store) => store.mergeSteps([request])));
  }

  async #delete(naive: Naive, mode: OnBranches): Promise<void> {
    const before = this.#trees.all.length;
    const done = this.#trees.delete(naive, mode);
    try {
      const deletion = await this.#scene.delete(naive.row, mode);
      expect(deletion.keptShared).toBe(done === 'hidden');
      expect([Number(deletion.purged), done]).toEqual([before - this.#trees.all.length, done]);
      expect(done).not.toBe('refused');
    } catch (error) {
      if (!(error instanceof AnabranchError)) throw error;
      expect([error.reason, done]).toEqual(['HAS_BRANCHES', 'refused']);
    }
  }

  async #read(naive: Naive, a: number, b: number): Promise<void> {
    const [from, to] = [Math.min(a, b), Math.max(a, b)];
    const { tree } = naive.row.ref;
    const lineage = await this.#scene.lineage(naive.row);
    const range = { from: BigInt(from), to: BigInt(to), maxSteps: 1000, maxBytes: 1e6 };
    const steps = await this.#scene.store.readSteps(this.#scene.namespace, tree, lineage, range, 'FULL');
    expect(steps.map(({ step }) => wordOf(step))).toEqual(naive.words.slice(from, to));
    const other = this.#trees.living[b % this.#trees.living.length] as Naive;
    const differ = naive.owners.findIndex((owner, i) => owner !== other.owners[i]);
    const shared = sharedSteps(lineage, await this.#scene.lineage(other.row));
    expect(Number(shared)).toBe(differ === -1 ? naive.words.length : differ);
    await this.#compareSteps(naive, other, { from, to });
  }

  /** RD5: compares two trajectories, as two lists are compared. */
  async #compareSteps(one: Naive, other: Naive, { from, to }: { readonly from: number; readonly to: number }) {
    const [a, b] = [await this.#scene.get(one.row.id), await this.#scene.get(other.row.id)];
    const range = { startStepNumber: BigInt(from), endStepNumber: BigInt(to) };
    const found = await compareTrajectories(this.#app, this.#scene.caller, a, b, range);
    const common = Math.min(one.words.length, other.words.length);
    const differing = one.words.findIndex((word, i) => i < common && word !== other.words[i]);
    const isLonger = one.words.length !== other.words.length;
    const first = differing === -1 ? (isLonger ? common : undefined) : differing;
    expect(found.firstDifference?.stepNumber).toBe(first === undefined ? undefined : BigInt(first));
    expect([found.firstDifference?.valueJson ?? '', found.firstDifference?.otherValueJson ?? '']).toEqual(
      differing === -1 ? ['', ''] : [one, other].map(({ words }) => JSON.stringify(words[differing])),
    );
    expect([found.nextStepNumber, found.otherNextStepNumber]).toEqual(
      [one, other].map(({ words }) => BigInt(words.length)),
    );
    expect([found.rewardSum, found.otherRewardSum]).toEqual([one, other].map(({ rewards }) => sumOf(rewards) ?? 0));
    const numbers = Array.from({ length: Math.max(one.words.length, other.words.length) }, (_, i) => i);
    expect(found.rewards.map((pair) => [Number(pair.stepNumber), pair.reward, pair.otherReward])).toEqual(
      numbers.slice(from, to).map((i) => [i, one.rewards[i], other.rewards[i]]),
    );
  }

  /** Begins to follow a trajectory live, unless it is followed already. */
  async #watch(naive: Naive): Promise<void> {
    if (this.#followers.has(naive) || naive.words.length === 0) return;
    const follower = new LiveFollower(this.#app, this.#scene.caller, naive.row.id);
    this.#followers.set(naive, follower);
    await follower.until(naive.words.length);
  }

  /** RD2: followers have read all steps of what is left, and a beginning of what was deleted. */
  async #compareFollowers(): Promise<void> {
    const living = new Set(this.#trees.living);
    for (const [naive, follower] of this.#followers) {
      if (living.has(naive)) {
        await follower.until(naive.words.length);
        if (naive.sealed) expect(await follower.end).toBe('sealed');
        expect(follower.words).toEqual(naive.words);
      } else {
        // A deletion may come before the seal was read.
        expect(await follower.end).toBeOneOf(naive.sealed ? ['sealed', 'TRAJECTORY_DELETED'] : ['TRAJECTORY_DELETED']);
        expect(follower.words).toEqual(naive.words.slice(0, follower.words.length));
      }
    }
  }

  /** Reads on where it stopped before, as a follower does, in pages of two steps. */
  async #follow(naive: Naive): Promise<void> {
    const { store, namespace } = this.#scene;
    const lineage = await this.#scene.lineage(naive.row);
    for (let from = naive.followed.length; from < naive.words.length; from = naive.followed.length) {
      const range = { from: BigInt(from), to: 1000n, maxSteps: 2, maxBytes: 1e6 };
      const page = await store.readSteps(namespace, naive.row.ref.tree, lineage, range, 'FULL');
      if (page.length === 0) throw new Error(`step ${from} of ${naive.row.id} is missing`);
      naive.followed.push(...page.map(({ step }) => wordOf(step)));
    }
    expect(naive.followed).toEqual(naive.words);
  }

  /** Compares sequences of states, checkpoints, and lists of steps by their states. */
  async #compareStates({ row, states, owners }: Naive): Promise<void> {
    const { store, namespace } = this.#scene;
    const { tree } = row.ref;
    const lineage = await this.#scene.lineage(row);
    for (const name of NAMES) {
      const kept = states.flatMap((each, i) => (isFound(each, name) ? [i] : []));
      const found: number[] = [];
      for (let from = 0n; ; from = BigInt(found.at(-1)!) + 1n) {
        const page = await store.listStepStates(namespace, tree, lineage, { name, from, limit: 3 });
        for (const { stepNumber, state } of page) {
          found.push(Number(stepNumber));
          const bytes = state.data ?? (await readWhole(store, namespace, state.digest));
          expect(Buffer.compare(bytes, states[Number(stepNumber)]!.get(name)!.state.data)).toBe(0);
        }
        if (page.length < 3) break;
      }
      expect(found).toEqual(kept);
      for (const before of [1000, kept.at(-1) ?? 0].map((last) => last - 1)) {
        const latest = await store.findCheckpoint(namespace, tree, lineage, BigInt(Math.max(before, 0)), [name]);
        const expected = kept.findLast((number) => number <= Math.max(before, 0));
        expect(latest?.step.stepNumber).toBe(expected === undefined ? undefined : BigInt(expected));
      }
      const both = states.findLastIndex((each) => isFound(each, name) && isFound(each, 'env'));
      const latest = await store.findCheckpoint(namespace, tree, lineage, 1000n, [name, 'env']);
      expect(latest?.step.stepNumber).toBe(both === -1 ? undefined : BigInt(both));
      const where = { of: { tree, lineage }, hasState: name };
      const page = { limit: 1000, after: undefined, maxBytes: 1e6 };
      const { steps: listed } = await store.listSteps(
        namespace,
        where,
        { by: 'NUMBER', descending: false },
        page,
        'BASIC',
      );
      // The order is by trajectory first, and a branch that a claim made may have a lower key than its parent.
      expect(listed.map(({ owner, step }) => `${owner.key} ${step.stepNumber}`).sort()).toEqual(
        kept.map((number) => `${owners[number]!.row.ref.key} ${number}`).sort(),
      );
    }
  }

  async #compareTrees(): Promise<void> {
    const { all } = this.#trees;
    const trees = new Set(all.map(({ row }) => row.ref.tree));
    for (const tree of trees) {
      const rows = await this.#scene.store.listTree(this.#scene.namespace, tree, { limit: 1000, after: undefined });
      const expected = all.filter(({ row }) => row.ref.tree === tree);
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

/** The states that a step is appended with. */
function statesOf(seed: number | undefined): NaiveStates {
  if (seed === undefined) return new Map();
  const named = (['agent', 'env'] as const).filter((_, i) => seed % 3 !== i);
  return new Map(named.map((name) => [name, { state: stateFor(name, seed), pruned: false, attached: false }]));
}

function refsTo(states: NaiveStates) {
  return [...states].map(([name, { state }]) =>
    state.data.length < SMALL_BYTES ? smallRef(state, name) : stateRef(state, name),
  );
}

/** States with rows of their own. */
function rowsIn(states: NaiveStates): NewState[] {
  return [...states.values()].flatMap(({ state }) => (state.data.length < SMALL_BYTES ? [] : [state]));
}

const SMALL_BYTES = 4096;

function stateTexts(states: NaiveStates): string[] {
  return NAMES.flatMap((name) => {
    const found = states.get(name);
    return found === undefined ? [] : [`${name} ${found.state.digest} ${!found.pruned}`];
  });
}

describeStore('the store compared with a naive list-copy model', (on) => {
  let app: App;

  beforeAll(() => {
    app = createTestApp(on);
  });

  afterAll(() => app.close());

  it(
    'O1, O2, B1, B2, W2, RD2, RD5, S8, S13, S14: random appends, attaches, nested branches, merges, seals, tags, deletes, policies, comparisons and live followers give the same result',
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(operation, { minLength: 20, maxLength: 50, size: 'max' }), async (operations) => {
          const twin = new Twin(app);
          const { namespace } = twin;
          try {
            await twin.do({ kind: 'create', words: 3 });
            for (const each of operations) await twin.do(each);
            await twin.compare();
            expect(await countRows(on.sql, namespace)).toMatchObject(twin.rows);
            checkChains(await storedStates(on.sql, namespace));
            await twin.mergeAll();
            await twin.compare();
            await expectVerified(on.store);
            await twin.deleteAll();
            expect(Object.values(await countRows(on.sql, namespace)).every((n) => n === 0)).toBe(true);
          } finally {
            await twin.stop();
          }
        }),
        { numRuns: RUNS },
      );
    },
    60_000 + RUNS * 1_000,
  );

  it(
    'O1, O2, B1, B2, W2: the same while two instances merge the same trajectories at once',
    async () => {
      // Only one process can use an SQLite file.
      const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
      await fc.assert(
        fc.asyncProperty(fc.array(operation, { minLength: 20, maxLength: 50, size: 'max' }), async (operations) => {
          const twin = new Twin(app, [on.store, other]);
          try {
            await twin.do({ kind: 'create', words: 3 });
            for (const each of operations) await twin.do(each);
            await twin.compare();
          } finally {
            await twin.stop();
          }
        }),
        { numRuns: RUNS },
      );
      await expectVerified(on.store);
      if (other !== on.store) await other.close();
    },
    60_000 + RUNS * 2_000,
  );
});
