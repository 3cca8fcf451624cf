import fc from 'fast-check';
import { expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import { refusalOf } from '../store/scene.ts';
import { dose } from '../support/dose.ts';
import { stepMessage } from '../support/given_steps.ts';
import { firstDifference, type NaiveStep, NaiveStore, type NaiveTrajectory, sharedSteps } from './naive.ts';
import { type AppScene, all, describeApp, step, wordOf } from './on_app.ts';

/** An action on a random living trajectory; numbers are taken modulo the number of choices. */
type Event =
  | { readonly kind: 'create' }
  | { readonly kind: 'append'; readonly pick: number; readonly words: readonly [string, number | undefined][] }
  | { readonly kind: 'batch'; readonly entries: readonly BatchEntry[] }
  | { readonly kind: 'branch'; readonly pick: number; readonly at: number }
  | { readonly kind: 'seal'; readonly pick: number }
  | { readonly kind: 'delete'; readonly pick: number; readonly mode: OnBranches }
  | { readonly kind: 'read'; readonly pick: number; readonly from: number; readonly to: number }
  | { readonly kind: 'compare'; readonly pick: number; readonly other: number };

/** `skipped`: steps that are left out before those of the entry. */
interface BatchEntry {
  readonly pick: number;
  readonly words: readonly [string, number | undefined][];
  readonly skipped: number;
  readonly seals: boolean;
}

const pick = fc.nat(1000);
// Few words, so that steps of different trajectories are often equal without being shared.
const words = fc.array(fc.tuple(fc.constantFrom('a', 'b'), fc.constantFrom(undefined, 1, -2, Number.NaN)), {
  minLength: 1,
  maxLength: 4,
});
const skipped = fc.oneof({ weight: 5, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.constantFrom(-1, 1) });
const seals = fc.nat(19).map((n) => n === 0);
const entries = fc.array(fc.record({ pick, words, skipped, seals }), { minLength: 1, maxLength: 6 });
const event: fc.Arbitrary<Event> = fc.oneof(
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('create' as const) }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('append' as const), pick, words }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('batch' as const), entries }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('branch' as const), pick, at: pick }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('seal' as const), pick }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('delete' as const),
      pick,
      mode: fc.constantFrom<OnBranches[]>('REFUSE', 'CASCADE', 'KEEP_SHARED'),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('read' as const), pick, from: pick, to: pick }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('compare' as const), pick, other: pick }) },
);

describeApp('trajectories', (on) => {
  it('O1, O2, B1, B2, RD1, RD5: behave like lists that are copied, through nested branches, seals and deletions', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(event, { minLength: 5, maxLength: 40 }), async (events) => {
        const pair = new Pair(on.scene());
        await pair.create();
        for (const one of events) await pair.play(one);
        await pair.checkAll();
      }),
      { numRuns: fc.readConfigureGlobal().numRuns ?? dose(12, 50) },
    );
  }, 120_000);
});

/** Applies the same actions to the service and to the model, and compares the results. */
class Pair {
  readonly #scene: AppScene;
  readonly #naive = new NaiveStore();

  constructor(scene: AppScene) {
    this.#scene = scene;
  }

  async create(): Promise<void> {
    this.#naive.create((await this.#scene.create()).id);
  }

  async play(event: Event): Promise<void> {
    const { living } = this.#naive;
    if (event.kind === 'create' || living.length === 0) return this.create();
    if (event.kind === 'batch') return this.#appendBatch(event.entries);
    const row = living[event.pick % living.length]!;
    switch (event.kind) {
      case 'append':
        return this.#append(row, event.words);
      case 'branch':
        return this.#branch(row, event.at);
      case 'seal':
        return this.#seal(row);
      case 'delete':
        return this.#delete(row, event.mode);
      case 'read':
        return this.#read(row, event.from % (row.steps.length + 1), event.to % (row.steps.length + 1));
      case 'compare':
        return this.#compare(row, living[event.other % living.length]!);
    }
  }

  async checkAll(): Promise<void> {
    for (const row of this.#naive.living) {
      await this.#read(row, 0, row.steps.length);
      const tree = await this.#scene.rpc.getTree({ trajectoryId: row.id, pageSize: 1000 });
      const shown = (id: string, hidden: boolean) => `${id} ${hidden}`;
      const expected = this.#naive.treeOf(row).map(({ id, hidden }) => shown(id, hidden));
      expect(tree.nodes.map(({ trajectory, deleted }) => shown(trajectory?.id ?? '', deleted)).sort()).toEqual(
        expected.sort(),
      );
      await this.#compare(row, this.#naive.living[0]!);
    }
  }

  async #append(row: NaiveTrajectory, added: readonly [string, number | undefined][]): Promise<void> {
    const steps = added.map(([word, reward], i) => step(BigInt(row.steps.length + i), word, { reward }));
    const written = this.#scene.write(row, steps);
    if (row.sealed) {
      expect((await refusalOf(written)).reason).toBe('TRAJECTORY_SEALED');
      return;
    }
    expect((await written).at(-1)).toMatchObject({
      kind: 'ack',
      nextStepNumber: BigInt(row.steps.length + added.length),
    });
    this.#naive.append(row, added);
  }

  /** Each entry is decided from what the entries before it have left. */
  async #appendBatch(entries: readonly BatchEntry[]): Promise<void> {
    const { living } = this.#naive;
    const expected: string[] = [];
    const sent = entries.map(({ pick, words, skipped, seals }) => {
      const row = living[pick % living.length]!;
      const first = BigInt(Math.max(0, row.steps.length + skipped));
      const steps = words.map(([word, reward], i) => stepMessage(step(first + BigInt(i), word, { reward })));
      const seal = seals ? { seal: { status: Status.COMPLETED } } : {};
      expected.push(this.#expectedOf(row, Number(first), words));
      if (expected.at(-1) === '') {
        this.#naive.append(row, words.slice(row.steps.length - Number(first)));
        row.sealed ||= seals;
      }
      return { trajectoryId: row.id, writerId: 'w', steps, ...seal };
    });
    const { results } = await this.#scene.rpc.appendBatch({ entries: sent });
    expect(results.map(({ error }) => error?.reason ?? '')).toEqual(expected);
  }

  #expectedOf(row: NaiveTrajectory, first: number, words: readonly [string, number | undefined][]): string {
    const isSame = words.slice(0, row.steps.length - first).every(([word, reward], i) => {
      const stored = row.steps[first + i];
      return stored === undefined || (stored.word === word && Object.is(stored.reward, reward));
    });
    if (!isSame) return 'STEP_CONFLICT';
    if (row.sealed && first + words.length > row.steps.length) return 'TRAJECTORY_SEALED';
    return first > row.steps.length ? 'STEP_GAP' : '';
  }

  async #branch(row: NaiveTrajectory, at: number): Promise<void> {
    if (row.steps.length === 0) {
      expect((await refusalOf(this.#scene.branch(row, 0n))).reason).toBe('BRANCH_POINT_BEYOND_END');
      return;
    }
    const point = at % row.steps.length;
    const made = await this.#scene.branch(row, BigInt(point));
    const naive = this.#naive.branch(made.id, row, point);
    expect(made).toMatchObject({ parent: { id: naive.parent?.id }, nextStepNumber: BigInt(naive.steps.length) });
    expect(made.rewardSum).toBe(sum(naive.steps));
  }

  async #seal(row: NaiveTrajectory): Promise<void> {
    await this.#scene.write(row, [], { status: 'COMPLETED', message: '' });
    row.sealed = true;
  }

  async #delete(row: NaiveTrajectory, onBranches: OnBranches): Promise<void> {
    const deletion = this.#scene.app.store.deleteTrajectory(this.#scene.caller.namespace, row.id, onBranches);
    if (this.#naive.delete(row, onBranches)) await deletion;
    else expect((await refusalOf(deletion)).reason).toBe('HAS_BRANCHES');
  }

  async #read(row: NaiveTrajectory, a: number, b: number): Promise<void> {
    const [from, to] = [Math.min(a, b), Math.max(a, b)];
    const range = { startStepNumber: BigInt(from), endStepNumber: BigInt(to) };
    const messages = await all(this.#scene.read(row, range));
    const got = messages.flatMap(({ trajectoryId, steps }) =>
      steps.map((one) => [one.stepNumber, wordOf(one), one.reward, one.rewardSum, trajectoryId]),
    );
    const expected = row.steps
      .map(({ word, reward, owner }, i) => [BigInt(i), word, reward, sum(row.steps.slice(0, i + 1)), owner.id])
      .slice(from, to);
    expect(got).toEqual(expected);
  }

  async #compare(row: NaiveTrajectory, other: NaiveTrajectory): Promise<void> {
    const range = { startStepNumber: 0n, endStepNumber: 1000n };
    const found = await this.#scene.rpc.compareTrajectories({
      trajectoryId: row.id,
      otherTrajectoryId: other.id,
      ...range,
    });
    const difference = firstDifference(row, other);
    expect(found.sharedSteps).toBe(BigInt(sharedSteps(row, other)));
    expect(found.firstDifference?.stepNumber).toBe(difference === undefined ? undefined : BigInt(difference));
    expect(found.rewards.map(({ reward }) => reward).slice(0, row.steps.length)).toEqual(
      row.steps.map(({ reward }) => reward),
    );
    expect([found.rewardSum, found.otherRewardSum]).toEqual([sum(row.steps), sum(other.steps)]);
  }
}

function sum(steps: readonly NaiveStep[]): number {
  return steps.reduce(
    (total, { reward }) => (reward === undefined || Number.isNaN(reward) ? total : total + reward),
    0,
  );
}
