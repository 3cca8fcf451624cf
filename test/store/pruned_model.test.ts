import process from 'node:process';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isKept, type NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { readWhole, Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { checkChains, stateOf, storedStates } from './state_chains.ts';
import { expectVerified } from './verified.ts';

const KIB = 1024;
const RUNS = Number(process.env.FC_RUNS ?? 6);

const NAMES = ['agent', 'env', 'later'] as const;
type Name = (typeof NAMES)[number];

type Command =
  | { readonly kind: 'append'; readonly at: number; readonly count: number; readonly seed: number }
  | { readonly kind: 'attach'; readonly at: number; readonly step: number; readonly name: Name; readonly seed: number }
  | { readonly kind: 'prune'; readonly at: number; readonly every: number; readonly names: readonly Name[] }
  | { readonly kind: 'branch'; readonly at: number; readonly step: number }
  | { readonly kind: 'delete'; readonly at: number; readonly how: 'CASCADE' | 'KEEP_SHARED' }
  | { readonly kind: 'merge'; readonly at: number }
  | { readonly kind: 'collect' };

const at = fc.nat(1000);
const anyCommand: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('append'), at, count: fc.integer({ min: 1, max: 12 }), seed: fc.nat(40) }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('prune'),
      at,
      every: fc.integer({ min: 1, max: 3 }),
      names: fc.subarray([...NAMES], { minLength: 1 }),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('attach'),
      at,
      step: at,
      name: fc.constantFrom(...NAMES),
      seed: fc.nat(2),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('branch'), at, step: at }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('delete'), at, how: fc.constantFrom('CASCADE', 'KEEP_SHARED') }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('merge'), at }) },
  { weight: 3, arbitrary: fc.constant({ kind: 'collect' as const }) },
);

/** A state of a step, by name. Branches share the step with the trajectory that owns it. */
interface ModelState {
  readonly state: NewState;
  pruned: boolean;
}
type ModelStep = Map<Name, ModelState>;

interface ModelTrajectory {
  readonly made: Trajectory;
  readonly parent: ModelTrajectory | undefined;
  readonly ownBegin: number;
  readonly steps: ModelStep[];
}

/** A naive copy: a trajectory is a list of steps, a branch copies the front of a list. */
class Model {
  readonly #scene: Scene;
  #trajectories: ModelTrajectory[] = [];

  constructor(scene: Scene) {
    this.#scene = scene;
  }

  async run(command: Command): Promise<void> {
    if (command.kind === 'collect') return collectUnused(this.#scene.store);
    if (this.#trajectories.length === 0) {
      this.#trajectories.push({ made: await this.#scene.create(), parent: undefined, ownBegin: 0, steps: [] });
    }
    const chosen = this.#trajectories[command.at % this.#trajectories.length]!;
    if (command.kind === 'append') await this.#append(chosen, command.count, command.seed);
    else if (command.kind === 'attach') await this.#attach(chosen, command);
    else if (command.kind === 'prune') await this.#prune(chosen, command);
    else if (command.kind === 'branch') await this.#branch(chosen, command.step);
    else if (command.kind === 'delete') await this.#delete(chosen, command.how);
    else expect(await this.#scene.store.mergeSteps([{ ref: chosen.made.ref, rest: true }])).toEqual([]);
  }

  async #append({ made, steps }: ModelTrajectory, count: number, seed: number): Promise<void> {
    const added = Array.from({ length: count }, (_, i) => ({
      env: stateOf(10, 5 * KIB, [seed, seed + i]),
      agent: newState(`agent ${seed + i}`),
    }));
    const distinct = new Map(added.map(({ env }) => [env.digest, env]));
    const appended = added.map(({ env, agent }, i) =>
      makeStep(BigInt(steps.length + i), { states: [smallRef(agent, 'agent'), stateRef(env)] }),
    );
    await this.#scene.append(made, appended, { states: [...distinct.values()] });
    const kept = (state: NewState) => ({ state, pruned: false });
    for (const { env, agent } of added) {
      steps.push(
        new Map([
          ['agent', kept(agent)],
          ['env', kept(env)],
        ]),
      );
    }
  }

  /** Attaches the state that was pruned, another one of the same name, or a new one. */
  async #attach(chosen: ModelTrajectory, { step, name, seed }: Extract<Command, { kind: 'attach' }>): Promise<void> {
    const { made, steps, ownBegin } = chosen;
    if (steps.length === ownBegin) return;
    const number = ownBegin + (step % (steps.length - ownBegin));
    const there = steps[number]!.get(name);
    const other = seed === 0 ? stateOf(11, 6 * KIB, [seed]) : newState(`later ${seed}`);
    const state = there !== undefined && seed > 0 ? there.state : other;
    const { digest, data } = state;
    const fence = { trajectoryId: made.id, uid: undefined, writerEpoch: undefined };
    const mediaType = 'application/octet-stream';
    const attaching = { ...fence, stepNumber: BigInt(number), name, digest, mediaType, data };
    const result = await this.#scene.store.attachState(this.#scene.caller, attaching).then(
      ({ duplicate }) => (duplicate ? 'duplicate' : 'attached'),
      ({ reason }) => reason,
    );
    if (there !== undefined && there.state.digest !== digest) expect(result).toBe('STATE_CONFLICT');
    else if (there?.pruned === false) expect(result).toBe('duplicate');
    else {
      expect(result).toBe('attached');
      if (there === undefined) steps[number]!.set(name, { state, pruned: false });
      else there.pruned = false;
    }
  }

  async #prune({ made, steps, ownBegin }: ModelTrajectory, { every, names }: Extract<Command, { kind: 'prune' }>) {
    const numbers = steps.map((_, i) => i).filter((i) => i >= ownBegin && i % every === 0);
    const pruning = numbers.map((number) => ({ stepNumber: BigInt(number), names, mediaTypes: [] }));
    await this.#scene.store.pruneStates(this.#scene.namespace, made.ref, pruning);
    for (const number of numbers) {
      for (const name of names) {
        const state = steps[number]!.get(name);
        if (state !== undefined) state.pruned = true;
      }
    }
  }

  async #branch(chosen: ModelTrajectory, step: number): Promise<void> {
    const { made, steps } = chosen;
    if (steps.length === 0) return;
    const point = step % steps.length;
    const branch = await this.#scene.branch(made, BigInt(point));
    this.#trajectories.push({ made: branch, parent: chosen, ownBegin: point + 1, steps: steps.slice(0, point + 1) });
  }

  async #delete(chosen: ModelTrajectory, how: 'CASCADE' | 'KEEP_SHARED'): Promise<void> {
    await this.#scene.delete(chosen.made, how);
    const ownerOf = (each: ModelTrajectory): ModelTrajectory | undefined => {
      let parent = each.parent;
      while (parent !== undefined && parent.ownBegin >= each.ownBegin) parent = parent.parent;
      return parent;
    };
    const descends = (each: ModelTrajectory | undefined): boolean =>
      each !== undefined && (each === chosen || descends(ownerOf(each)));
    this.#trajectories = this.#trajectories.filter((each) => (how === 'CASCADE' ? !descends(each) : each !== chosen));
  }

  async mergeAll(): Promise<void> {
    for (const { made } of this.#trajectories) await this.#scene.store.mergeSteps([{ ref: made.ref, rest: true }]);
  }

  async compare(): Promise<void> {
    const { store, namespace } = this.#scene;
    for (const { made, steps } of this.#trajectories) {
      const found = await this.#scene.steps(made);
      expect(found.map(({ step }) => step.states.map((each) => `${each.name} ${each.digest} ${isKept(each)}`))).toEqual(
        steps.map((step) =>
          NAMES.filter((name) => step.has(name)).map((name) => {
            const { state, pruned } = step.get(name)!;
            return `${name} ${state.digest} ${!pruned}`;
          }),
        ),
      );
      const lineage = await this.#scene.lineage(made);
      const { tree } = made.ref;
      for (const name of NAMES) {
        const kept = steps.flatMap((step, i) => (step.get(name)?.pruned === false ? [i] : []));
        const listed = await store.listStepStates(namespace, tree, lineage, { name, from: 0n, limit: 10_000 });
        expect(listed.map(({ stepNumber }) => Number(stepNumber))).toEqual(kept);
        for (const { stepNumber, state } of listed) {
          const bytes = state.data ?? (await readWhole(store, namespace, state.digest));
          expect(Buffer.compare(bytes, steps[Number(stepNumber)]!.get(name)!.state.data)).toBe(0);
        }
        const latest = await store.findCheckpoint(namespace, tree, lineage, 1000n, [name]);
        expect(latest?.step.stepNumber).toBe(kept.length === 0 ? undefined : BigInt(kept.at(-1)!));
      }
    }
  }

  async deleteAll(): Promise<void> {
    for (const { made } of this.#trajectories) await this.#scene.delete(made, 'KEEP_SHARED');
    await collectUnused(this.#scene.store);
  }
}

describeStore('pruned states compared with a naive list-copy model', (on) => {
  it(
    'S13, S8: after any history of appends, attaches, prunes, merges, branches, deletions and collections, all that is left reads back',
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(anyCommand, { minLength: 15, maxLength: 40, size: 'max' }), async (commands) => {
          const scene = new Scene(on.store);
          const model = new Model(scene);
          for (const command of commands) await model.run(command);
          await model.compare();
          checkChains(await storedStates(on.sql, scene.namespace));
          await expectVerified(on.store);
          await model.mergeAll();
          await model.compare();
          await expectVerified(on.store);
          await model.deleteAll();
          expect(Object.values(await countRows(on.sql, scene.namespace)).every((n) => n === 0)).toBe(true);
        }),
        { numRuns: RUNS },
      );
    },
    60_000 + RUNS * 10_000,
  );
});
