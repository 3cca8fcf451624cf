import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf, Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { checkChains, type StoredState, stateOf, storedStates } from './state_chains.ts';

const KIB = 1024;

describeStore('states that are stored as changes', (on) => {
  async function look(scene: Scene): Promise<StoredState[]> {
    const states = await storedStates(on.sql, scene.namespace);
    checkChains(states);
    return [...states.values()];
  }

  async function appendStates(scene: Scene, trajectory: Trajectory, from: number, states: readonly NewState[]) {
    const steps = states.map((state, i) => makeStep(BigInt(from + i), { states: [stateRef(state)] }));
    const distinct = new Map(states.map((each) => [each.digest, each]));
    await scene.append(trajectory, steps, { states: [...distinct.values()] });
  }

  /** Reads all states together, and every `every`-th by itself. */
  async function readBack(scene: Scene, states: Iterable<NewState>, every = 1): Promise<void> {
    const all = new Map([...states].map(({ digest, data }) => [digest, data]));
    for (const [digest, data] of [...all].filter((_, i) => i % every === 0))
      expect(Buffer.compare(await readWhole(scene.store, scene.namespace, digest), data)).toBe(0);
    const located = await scene.store.locateStates(scene.namespace, [...all.keys()]);
    const inRows = [...located.values()].filter(({ decodedBytes }) => decodedBytes !== undefined);
    const together = await scene.store.readWholeStates(
      scene.namespace,
      inRows.map(({ digest }) => digest),
    );
    expect([...together].every(([digest, data]) => Buffer.compare(all.get(digest)!, data) === 0)).toBe(true);
    expect(together.size).toBe(inRows.length);
  }

  const isWhole = ({ base }: StoredState) => base === undefined;

  it('S8: a state costs what changed, alone or in a batch, and a chain has at most 32 deltas', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 440 }, (_, i) => stateOf(1, 4 * KIB, [i, i * 7, i * 31]));
    for (const [i, state] of states.slice(0, 20).entries()) await appendStates(scene, made, i, [state]);
    for (let i = 20; i < states.length; i += 85) await appendStates(scene, made, i, states.slice(i, i + 85));
    const stored = await look(scene);
    expect(stored.filter(isWhole)).toHaveLength(2);
    expect(Math.max(...stored.map(({ depth }) => depth))).toBe(32);
    for (const state of stored) expect(state.stored).toBeLessThan(isWhole(state) ? 3 * KIB : 100);
    // States of every depth: 7 and the longest chain, of 33 states, have no common divisor.
    await readBack(scene, states, 7);
  });

  it('S8: a state that was uploaded in chunks is no base, though the same bytes come inline as well', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 3 }, (_, i) => stateOf(9, 300 * KIB, [i]));
    const [uploaded, ...changed] = states;
    await putState(scene.store, scene.namespace, uploaded!.data);
    await appendStates(scene, made, 0, [uploaded!]);
    for (const [i, state] of changed.entries()) await appendStates(scene, made, i + 1, [state]);
    await readBack(scene, states);
    await scene.delete(made);
    const kept = await scene.create();
    await appendStates(scene, kept, 0, changed);
    await collectUnused(scene.store);
    await readBack(scene, changed);
    await putState(scene.store, scene.namespace, uploaded!.data);
    await readBack(scene, states);
  });

  it('S8: at most 4 MiB are decoded to read a state', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 17 }, (_, i) => stateOf(2, 512 * KIB, [i]));
    for (const [i, state] of states.entries()) await appendStates(scene, made, i, [state]);
    const stored = await look(scene);
    expect(Math.max(...stored.map(({ baseBytes, size }) => baseBytes + size))).toBe(4 * 1024 * KIB);
    await readBack(scene, states);
  });

  it('S8: branches continue from the state of their branch point, also after a restart; a base has at most 32 dependents', async () => {
    let scene = on.scene();
    const root = await scene.create();
    const states = [stateOf(3, 8 * KIB)];
    await appendStates(scene, root, 0, states);
    for (let i = 0; i < 70; i += 1) {
      if (i === 20) {
        await on.reopen();
        scene = new Scene(on.store, scene.namespace);
      }
      const state = stateOf(3, 8 * KIB, [i + 1]);
      await appendStates(scene, await scene.branch(root, 0n), 1, [state]);
      states.push(state);
    }
    expect((await look(scene)).filter(isWhole)).toHaveLength(3);
    await readBack(scene, states);
  });

  it('S8, W10: attached states cost what changed as well, also after a restart, on whatever base they are', async () => {
    let scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 6 }, (_, i) => stateOf(6, 16 * KIB, [i]));
    await appendStates(scene, made, 0, states.slice(0, 1));
    for (const number of [1n, 2n, 3n, 4n, 5n]) await scene.append(made, [makeStep(number)]);
    const attach = (number: number) => {
      const { digest, data } = states[number]!;
      const attached = { name: 'env', digest, mediaType: '', data, uid: undefined, writerEpoch: undefined };
      const place = { trajectoryId: made.id, stepNumber: BigInt(number) };
      return scene.store.attachState(scene.caller, { ...place, ...attached });
    };
    expect(await attach(1)).toMatchObject({ duplicate: false });
    await on.reopen();
    scene = new Scene(on.store, scene.namespace);
    for (const number of [3, 2, 5, 4]) expect(await attach(number)).toMatchObject({ duplicate: false });
    expect(await attach(4)).toMatchObject({ duplicate: true });
    const stored = await look(scene);
    expect(stored.filter(isWhole)).toHaveLength(1);
    for (const state of stored) expect(state.stored).toBeLessThan(isWhole(state) ? 12 * KIB : 100);
    await readBack(scene, states);
  });

  it('S8: branches that begin at the same time share whole states too', async () => {
    const scene = on.scene();
    const root = await scene.create();
    await appendStates(scene, root, 0, [stateOf(4, 8 * KIB)]);
    const branches = await Promise.all(Array.from({ length: 48 }, () => scene.branch(root, 0n)));
    const states = branches.map((_, i) => stateOf(4, 8 * KIB, [i + 1]));
    const batches = branches.map((branch, i) =>
      scene.batch(branch, [makeStep(1n, { states: [stateRef(states[i]!)] })], { states: [states[i]!] }),
    );
    for (const outcome of await scene.store.append(batches, 'bounded')) expect(outcome.kind).toBe('committed');
    expect((await look(scene)).filter(isWhole)).toHaveLength(2);
    await readBack(scene, states);
  });

  it('S8: data that does not compress is stored as it is; so is a state that shares little with the one before', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const random = Array.from({ length: 2 }, () => newState(randomBytes(100 * KIB)));
    const unlike = [stateOf(5, 20 * KIB), stateOf(6, 20 * KIB)];
    const states = [...random, ...unlike];
    await appendStates(scene, made, 0, states);
    const stored = await look(scene);
    expect(stored.every(isWhole)).toBe(true);
    const raw = new Set(random.map(({ digest }) => digest));
    for (const { digest, stored: bytes, size } of stored) expect(bytes === size).toBe(raw.has(digest));
    await readBack(scene, states);
  });

  it('S8: random data of which little changes is stored as changes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [one, other] = [randomBytes(100 * KIB), Buffer.alloc(100 * KIB)];
    one.copy(other);
    other.writeUInt32LE(1, 50_000);
    await appendStates(scene, made, 0, [newState(one), newState(other)]);
    expect((await look(scene)).map(({ stored }) => stored).sort((a, b) => a - b)[0]).toBeLessThan(200);
    await readBack(scene, [newState(one), newState(other)]);
  });

  it('S2, S8: a base without references cannot be read, and stays until its dependents are stored whole', async () => {
    const scene = on.scene();
    const [first, second] = [await scene.create(), await scene.create()];
    const states = Array.from({ length: 3 }, (_, i) => stateOf(7, 8 * KIB, [i]));
    await appendStates(scene, first, 0, states);
    await scene.append(second, [makeStep(0n, { states: [stateRef(states[2]!)] })]);
    await scene.delete(first);
    await collectUnused(scene.store);
    expect(await look(scene)).toMatchObject([{ digest: states[2]!.digest, base: undefined }]);
    await readBack(scene, [states[2]!]);
    for (const { digest } of states.slice(0, 2))
      expect((await refusalOf(scene.store.readState(scene.namespace, digest, 0))).reason).toBe('STATE_NOT_FOUND');
  });

  it('S2, S8: a collected base is not found, is no base any more, and can be sent again', async () => {
    const scene = on.scene();
    const [made, keeper] = [await scene.create(), await scene.create()];
    const states = Array.from({ length: 3 }, (_, i) => stateOf(8, 8 * KIB, [i]));
    const [base, dependent, next] = [states[0]!, states[1]!, states[2]!];
    await appendStates(scene, made, 0, [base, dependent]);
    await scene.append(keeper, [makeStep(0n, { states: [stateRef(dependent)] })]);
    const where = `namespace = '${scene.namespace}' and digest = ${on.sql.engine === 'sqlite' ? 'x' : "'\\x"}`;
    const of = ({ digest }: NewState) => (on.sql.engine === 'sqlite' ? `${where}'${digest}'` : `${where}${digest}'`);
    const setCollected = (state: NewState, set: boolean) =>
      on.sql.rows(
        `update states set collected = ${on.sql.engine === 'sqlite' ? Number(set) : set} where ${of(state)} returning 1 as n`,
      );
    await setCollected(base, true);
    await setCollected(dependent, true);
    expect(await scene.store.findStates(scene.namespace, [base.digest], true)).toEqual([]);
    const other = await scene.create();
    const step = makeStep(0n, { states: [stateRef(base)] });
    expect((await refusalOf(scene.append(other, [step]))).reason).toBe('STATE_NOT_FOUND');
    // The process expects `dependent` to be the base of the next state.
    await appendStates(scene, made, 2, [next]);
    expect((await look(scene)).find(({ digest }) => digest === next.digest)?.base).toBeUndefined();
    await setCollected(dependent, false);
    await on.sql.rows(
      `update states set referenced = ${on.sql.engine === 'sqlite' ? 0 : false} where ${of(base)} returning 1 as n`,
    );
    await scene.append(other, [step], { states: [base] });
    await collectUnused(scene.store);
    await readBack(scene, states);
    await setCollected(base, true);
    await on.sql.rows(
      `update states set referenced = ${on.sql.engine === 'sqlite' ? 0 : false} where ${of(base)} returning 1 as n`,
    );
    await putState(scene.store, scene.namespace, base.data);
    await readBack(scene, states);
  });

  it('S3, S8: a damaged base makes its dependents corrupt, never wrong, and prevents no append', async () => {
    let scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 4 }, (_, i) => stateOf(9, 8 * KIB, [i]));
    await appendStates(scene, made, 0, states.slice(0, 3));
    const flip =
      on.sql.engine === 'sqlite'
        ? "cast(substr(data, 1, 100) || x'00' || substr(data, 102) as blob)"
        : 'set_byte(data, 100, get_byte(data, 100) # 255)';
    await on.sql.rows(
      `update states set data = ${flip} where namespace = '${scene.namespace}' and base is null returning 1 as n`,
    );
    for (const { digest } of states.slice(0, 3)) {
      const refusal = await refusalOf(readWhole(scene.store, scene.namespace, digest));
      expect(refusal).toMatchObject({ reason: 'STATE_CORRUPT', metadata: { digest } });
      expect(await refusalOf(scene.store.readWholeStates(scene.namespace, [digest]))).toMatchObject({
        reason: 'STATE_CORRUPT',
        metadata: { digest },
      });
    }
    await on.reopen();
    scene = new Scene(on.store, scene.namespace);
    await appendStates(scene, made, 3, [states[3]!]);
    await readBack(scene, [states[3]!]);
    await on.sql.rows(`delete from states where namespace = '${scene.namespace}' and depth = 1 returning 1 as n`);
    const digest = states[2]!.digest;
    expect(await refusalOf(readWhole(scene.store, scene.namespace, digest))).toMatchObject({
      reason: 'STATE_CORRUPT',
      metadata: { digest },
    });
  });

  it('S8, D5: after any history of appends, branches, deletions, collections and restarts, all states read back', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(anyCommand, { minLength: 10, maxLength: 25 }), async (commands) => {
        const model = new Model(new Scene(on.store));
        for (const command of commands) {
          if (command.kind === 'restart') {
            await on.reopen();
            model.scene = new Scene(on.store, model.scene.namespace);
          } else await model.run(command);
        }
        await look(model.scene);
        for (const states of model.lineages()) await readBack(model.scene, states);
        await model.deleteAll();
        expect(Object.values(await countRows(on.sql, model.scene.namespace)).every((n) => n === 0)).toBe(true);
      }),
      { numRuns: dose(3, 20), seed: 14 },
    );
  });
});

type Command =
  | { readonly kind: 'append'; readonly at: number; readonly count: number; readonly seed: number }
  | { readonly kind: 'branch'; readonly at: number; readonly point: number }
  | { readonly kind: 'delete'; readonly at: number; readonly how: 'CASCADE' | 'KEEP_SHARED' }
  | { readonly kind: 'collect' }
  | { readonly kind: 'restart' };

const at = fc.nat(1000);
const anyCommand: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('append'), at, count: fc.integer({ min: 1, max: 12 }), seed: fc.nat(40) }),
  },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('branch'), at, point: at }) },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constant('delete'), at, how: fc.constantFrom('CASCADE', 'KEEP_SHARED') }),
  },
  { weight: 3, arbitrary: fc.constantFrom({ kind: 'collect' }, { kind: 'restart' }) },
);

interface ModelTrajectory {
  readonly made: Trajectory;
  readonly parent: ModelTrajectory | undefined;
  /** The number of inherited steps. */
  readonly begin: number;
  /** The states of all steps, inherited ones first. */
  readonly states: NewState[];
}

/** A branch belongs to the owner of its branch point, whichever trajectory is named. */
function ownerOf(named: ModelTrajectory, point: number): ModelTrajectory {
  return named.parent !== undefined && point < named.begin ? ownerOf(named.parent, point) : named;
}

/** A naive copy of trajectories whose steps have a state each. */
class Model {
  scene: Scene;
  #trajectories: ModelTrajectory[] = [];

  constructor(scene: Scene) {
    this.scene = scene;
  }

  lineages(): NewState[][] {
    return this.#trajectories.map(({ states }) => states);
  }

  async run(command: Exclude<Command, { readonly kind: 'restart' }>): Promise<void> {
    if (this.#trajectories.length === 0)
      this.#trajectories.push({ made: await this.scene.create(), parent: undefined, begin: 0, states: [] });
    if (command.kind === 'collect') return collectUnused(this.scene.store);
    const chosen = this.#trajectories[command.at % this.#trajectories.length]!;
    const { made, states } = chosen;
    if (command.kind === 'append') {
      const added = Array.from({ length: command.count }, (_, i) =>
        stateOf(10, 5 * KIB, [command.seed, command.seed + i]),
      );
      const distinct = new Map(added.map((each) => [each.digest, each]));
      const steps = added.map((state, i) => makeStep(BigInt(states.length + i), { states: [stateRef(state)] }));
      await this.scene.append(made, steps, { states: [...distinct.values()] });
      states.push(...added);
    } else if (command.kind === 'branch') {
      if (states.length === 0) return;
      const point = command.point % states.length;
      const branch = await this.scene.branch(made, BigInt(point));
      const inherited = { begin: point + 1, states: states.slice(0, point + 1) };
      this.#trajectories.push({ made: branch, parent: ownerOf(chosen, point), ...inherited });
    } else {
      await this.scene.delete(made, command.how);
      const descends = (each: ModelTrajectory | undefined): boolean =>
        each !== undefined && (each === chosen || descends(each.parent));
      this.#trajectories = this.#trajectories.filter((each) =>
        command.how === 'CASCADE' ? !descends(each) : each !== chosen,
      );
    }
  }

  async deleteAll(): Promise<void> {
    while (this.#trajectories.length > 0) await this.run({ kind: 'delete', at: 0, how: 'KEEP_SHARED' });
    await collectUnused(this.scene.store);
  }
}
