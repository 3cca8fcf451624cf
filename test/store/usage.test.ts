import process from 'node:process';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { NewState, StateRef } from '../../src/domain/step.ts';
import { ownBegin, type Trajectory } from '../../src/domain/trajectory.ts';
import type { StorageUsage, UsageProgress } from '../../src/domain/usage.ts';
import type { UsageStore } from '../../src/store/contract/retention.ts';
import type { OnBranches } from '../../src/store/contract/trajectory.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, smallRef, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { naiveUsage } from './naive_usage.ts';
import { describeStore, openOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { putState } from './scene.ts';
import { stateOf } from './state_chains.ts';
import { statementsOf } from './statement_count.ts';
import { expectVerified } from './verified.ts';

/** `FC_RUNS=100` runs more cases. */
const RUNS = Number(process.env.FC_RUNS ?? dose(2, 10));

const SENT = ['nothing', 'small', 'shared', 'changed', 'content', 'twice'] as const;
const at = fc.nat(30);
const step = fc.nat(12);
const operation = fc.oneof(
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('create' as const), run: fc.nat(3) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('branch run' as const), run: fc.nat(3), step }) },
  { weight: 8, arbitrary: fc.record({ kind: fc.constant('branch' as const), at, step }) },
  {
    weight: 10,
    arbitrary: fc.record({
      kind: fc.constant('append' as const),
      at,
      sent: fc.array(fc.constantFrom(...SENT), { minLength: 1, maxLength: 5 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('attach' as const), at, step, isSmall: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('put' as const), isFinished: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('merge' as const), at }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('delete' as const),
      at,
      mode: fc.constantFrom<OnBranches>('CASCADE', 'KEEP_SHARED', 'KEEP_SHARED', 'KEEP_SHARED'),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('collect' as const) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer T> ? T : never;

/** Two runs, and a trajectory without a run. */
const BEGINNING: readonly Operation[] = [
  { kind: 'branch run', run: 0, step: 0 },
  { kind: 'append', at: 0, sent: ['changed', 'changed', 'small', 'twice', 'content'] },
  { kind: 'branch run', run: 0, step: 4 },
  { kind: 'create', run: 3 },
  { kind: 'append', at: 2, sent: ['changed', 'shared', 'nothing'] },
];

async function resultOf(
  measuring: ReturnType<UsageStore['measureUsage']>,
): Promise<{ readonly progress: UsageProgress[]; readonly usage: StorageUsage }> {
  const progress: UsageProgress[] = [];
  for (;;) {
    const next = await measuring.next();
    if (next.done === true) return { progress, usage: next.value };
    progress.push(next.value);
  }
}

/** A namespace that is changed at random. */
class Changing extends RunScene {
  readonly #pool = Array.from({ length: 3 }, (_, i) => newState(`${i}`.repeat(5000)));
  #changes = 0;
  #last: string | undefined;
  readonly measuredRuns: { id: string; key: bigint }[] = [];

  async apply(change: Operation): Promise<void> {
    this.#changes += 1;
    const rows = await this.store.listTrajectories(this.namespace, {}, { limit: 100, after: undefined });
    const chosen = 'at' in change ? rows.toReversed()[change.at % Math.max(rows.length, 1)] : undefined;
    if (change.kind === 'create')
      await this.create(this.measuredRuns[change.run] && { runId: this.measuredRuns[change.run]!.id });
    if (change.kind === 'branch run') await this.#branchRun(change.run, change.step);
    if (change.kind === 'put') await this.#put(change.isFinished);
    if (change.kind === 'collect') await collectUnused(this.store);
    if (chosen !== undefined) await this.#applyTo(chosen, change);
  }

  async #applyTo(chosen: Trajectory, change: Operation): Promise<void> {
    const { id, ref, nextStepNumber: end } = chosen;
    if (change.kind === 'delete') await this.delete(chosen, change.mode);
    if (change.kind === 'branch' && end > 0n) await this.branch(chosen, BigInt(change.step) % end);
    if (change.kind === 'merge')
      for (let left = [{ ref, rest: true }]; left.length > 0; ) left = await this.store.mergeSteps(left);
    if (change.kind === 'append') await this.#appendTo(chosen, change.sent);
    const own = ownBegin(chosen);
    if (change.kind !== 'attach' || end === own) return;
    const { digest, data } = change.isSmall ? newState(`${this.#changes}`) : this.#pool[0]!;
    const target = { trajectoryId: id, uid: undefined, writerEpoch: undefined, mediaType: '', digest, data };
    const stepNumber = own + (BigInt(change.step) % (end - own));
    await this.store.attachState(this.caller, { ...target, stepNumber, name: `later ${this.#changes}` });
  }

  async #appendTo(chosen: Trajectory, sent: readonly (typeof SENT)[number][]): Promise<void> {
    const inline = new Map<string, NewState>();
    const refer = (state: NewState, name: string): StateRef => {
      inline.set(state.digest, state);
      return stateRef(state, name);
    };
    const steps = sent.map((kind, i) => {
      const number = chosen.nextStepNumber + BigInt(i);
      const shared = this.#pool[(this.#changes + i) % this.#pool.length]!;
      if (kind === 'nothing') return wordStep(number, 'word');
      if (kind === 'small') return makeStep(number, { states: [smallRef(newState(`small ${this.#changes}`))] });
      if (kind === 'shared') return makeStep(number, { states: [refer(shared, 'env')] });
      if (kind === 'changed') return makeStep(number, { states: [refer(stateOf(7, 9000, [this.#changes, i]), 'env')] });
      if (kind === 'twice') return makeStep(number, { states: [refer(shared, 'a'), refer(shared, 'b')] });
      const { digest, data } = shared;
      refer(shared, '');
      const content = { kind: 'state', digest, mediaType: '', size: data.length } as const;
      return makeStep(number, { observations: [textObservation('', { content })] });
    });
    await this.append(chosen, steps, { states: [...inline.values()] });
  }

  async #branchRun(run: number, at: number): Promise<void> {
    const source = this.measuredRuns[run];
    const main = source && (await this.run(source.id)).mainTrajectory;
    if (source === undefined || main === undefined) {
      this.measuredRuns.push(await this.makeRunWith(['a', 'b', 'c']));
      return;
    }
    const found = await this.store.getTrajectory(this.namespace, main.id);
    if (found === undefined || found.nextStepNumber === 0n) return;
    this.measuredRuns.push((await this.branchOff(source, BigInt(at) % found.nextStepNumber)).run);
  }

  /** A state in chunks, most of which equal those of the one before; or the beginning of one. */
  async #put(isFinished: boolean): Promise<void> {
    const bytes = Buffer.from(stateOf(3, 600 * 1024).data);
    bytes.writeUInt32LE(this.#changes, 0);
    // Pieces are stored once there are some of them.
    if (!isFinished) await this.store.putState(this.namespace, this.#last).write(Buffer.concat([bytes, bytes]));
    else this.#last = await putState(this.store, this.namespace, bytes, undefined, this.#last);
  }
}

describeStore('use of storage', (on) => {
  it('S12, F-23: the usage of every trajectory, run and namespace equals a naive count of all rows', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(operation, { minLength: 40, maxLength: 60, size: 'max' }), async (changes) => {
        const scene = new Changing(on.store);
        const measure = async (of: Parameters<UsageStore['measureUsage']>[1]) =>
          (await resultOf(on.store.measureUsage(scene.namespace, of))).usage;
        for (const change of [...BEGINNING, ...changes]) {
          await scene.apply(change);
          expect(await measure('namespace')).toEqual((await naiveUsage(on.sql, scene.namespace))('namespace'));
        }
        const naive = await naiveUsage(on.sql, scene.namespace);
        for (const { key } of scene.measuredRuns) expect(await measure({ run: key })).toEqual(naive({ run: key }));
        const rows = await scene.store.listTrajectories(scene.namespace, {}, { limit: 100, after: undefined });
        for (const { ref } of rows) expect(await measure({ trajectory: ref })).toEqual(naive({ trajectory: ref.key }));
        await expectVerified(on.store);
      }),
      { numRuns: RUNS, endOnFailure: true },
    );
  });

  it('S12: long trajectories and many branches are measured in parts, with progress', async () => {
    const scene = on.scene();
    const made = await scene.create();
    for (let from = 0n; from < 17_000n; from += 1000n) {
      await scene.append(
        made,
        Array.from({ length: 1000 }, (_, i) => wordStep(from + BigInt(i), 'x')),
      );
    }
    const branch = await scene.branch(made, 16_500n);
    const others = await Promise.all(Array.from({ length: 30 }, (_, i) => scene.branch(branch, BigInt(i) * 500n)));
    await scene.appendWords(others[7]!, ['own']);
    const naive = await naiveUsage(on.sql, scene.namespace);
    const measured = [made, branch, others[7]!].map(
      ({ ref }) => [{ trajectory: ref }, { trajectory: ref.key }] as const,
    );
    for (const [of, naively] of [...measured, ['namespace', 'namespace'] as const]) {
      const { progress, usage } = await resultOf(on.store.measureUsage(scene.namespace, of));
      expect(usage).toEqual(naive(naively));
      const { done, total } = progress.at(-1)!;
      expect([progress[0], done]).toEqual([{ done: 0n, total }, total]);
      const steps = [...new Set(progress.map((each) => each.done))];
      expect(steps.length).toBeGreaterThan(2);
      expect(steps).toEqual(steps.toSorted((a, b) => Number(a - b)));
    }
  });

  it('S12: the usage is exact after two servers have merged, appended, attached and deleted at once', async () => {
    const scene = on.scene();
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.create()));
    const merging = [on.store, other].map(async (store) => {
      for (let round = 0; round < 12; round += 1)
        await store.mergeSteps(made.map(({ ref }) => ({ ref, rest: round % 2 === 0 })));
    });
    const changing = made.map(async (each, i) => {
      for (let n = 0n; n < 12n; n += 1n) {
        const large = newState(`${i % 2}${n}`.repeat(3000));
        const states = [stateRef(large, 'env'), smallRef(newState(`${n}`), 'small')];
        await scene.append(each, [makeStep(n, { states })], { states: [large] });
        if (n % 4n === 3n) {
          const late = newState(`late ${n}`);
          const target = { trajectoryId: each.id, uid: undefined, writerEpoch: undefined, mediaType: '', ...late };
          await scene.store.attachState(scene.caller, { ...target, stepNumber: n - 2n, name: 'late' });
        }
      }
      if (i === 0) await scene.delete(each);
    });
    await Promise.all([...merging, ...changing]);
    const { usage } = await resultOf(on.store.measureUsage(scene.namespace, 'namespace'));
    expect(usage).toEqual((await naiveUsage(on.sql, scene.namespace))('namespace'));
    await expectVerified(on.store);
    if (other !== on.store) await other.close();
  });

  it('S12: a state of many trajectories is shared as soon as one of them is not measured', async () => {
    const scene = new RunScene(on.store);
    const { id: runId, key } = await scene.makeRunWith(['a']);
    const states = [1, 2, 3].map((i) => newState(`${i}`.repeat(5000)));
    const made = [];
    for (let i = 0; i < 300; i += 100)
      made.push(...(await Promise.all(Array.from({ length: 100 }, () => scene.create({ runId })))));
    const steps = [makeStep(0n, { states: states.map((state, i) => stateRef(state, `${i}`)) })];
    await scene.store.append(
      made.map((each) => scene.batch(each, steps, { states })),
      'bounded',
    );
    const sharedOf = async () => {
      const naive = await naiveUsage(on.sql, scene.namespace);
      const { usage } = await resultOf(on.store.measureUsage(scene.namespace, { run: key }));
      expect(usage).toEqual(naive({ run: key }));
      return usage.states.shared > 0n;
    };
    expect(await sharedOf()).toBe(false);
    await scene.append(await scene.create(), [makeStep(0n, { states: [stateRef(states[1]!)] })]);
    expect(await sharedOf()).toBe(true);
  });

  it('S12: branches outside at deep lineages of a run are found by few statements', async () => {
    const scene = new RunScene(on.store);
    const { key } = await scene.makeRunWith(['a']);
    const made = [await scene.createWith(['root'])];
    for (let i = 1; i < 80; i += 1) {
      const branch = await scene.branch(made.at(-1)!, BigInt(i - 1));
      await scene.appendWords(branch, [`${i}`]);
      made.push(branch);
    }
    await on.sql.rows(`update trajectories set run = ${key} where tree = ${made[0]!.ref.tree}`);
    const measure = async () => (await resultOf(on.store.measureUsage(scene.namespace, { run: key }))).usage;
    const before = await statementsOf(on.engine, measure);
    for (const [at, point] of [
      [79, 79n],
      [79, 40n],
      [30, 30n],
    ] as const) {
      const { ref } = await scene.branch(made[at]!, point);
      await on.sql.rows(`update trajectories set run = null where key = ${ref.key}`);
    }
    expect((await measure()).steps.shared).toBeGreaterThan(0n);
    // Two for the ancestors, and three for a window of shared steps.
    expect(await statementsOf(on.engine, measure)).toBeLessThanOrEqual(before + 5);
    expect(await measure()).toEqual((await naiveUsage(on.sql, scene.namespace))({ run: key }));
  });

  it('N1: other namespaces measure nothing of a trajectory or run', async () => {
    const scene = new RunScene(on.store);
    const { key, mainTrajectory } = await scene.makeRunWith(['a']);
    const { ref } = await scene.get(mainTrajectory!.id);
    const nothing = { logical: 0n, stored: 0n, shared: 0n };
    for (const of of [{ run: key }, { trajectory: ref }, 'namespace'] as const) {
      const { usage } = await resultOf(on.store.measureUsage(on.scene().namespace, of));
      expect(usage).toEqual({ steps: nothing, states: nothing });
    }
  });
});
