import { expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import { committed, readWhole, Scene, wordOf } from './scene.ts';

describeStore('writers that take over from each other', (on) => {
  /**
   * The instances on one database: two stores on Postgres, like two processes; SQLite has one process and one store.
   */
  async function withStores(work: (stores: readonly Store[]) => Promise<void>): Promise<void> {
    if (on.engine === 'sqlite') return work([on.store, on.store]);
    const second = await openOn(on.database);
    try {
      await work([on.store, second]);
    } finally {
      await second.close();
    }
  }

  it('F1: after an epoch is granted nothing older commits, on any instance', async () => {
    await withStores(async (stores) => {
      const scenes = stores.map((store) => new Scene(store));
      const namespace = scenes[0]?.namespace as string;
      const instances = stores.map((store) => new Scene(store, namespace));
      const [first] = instances as [Scene];
      const made = await first.create();
      const acked: { epoch: bigint; number: bigint; word: string }[] = [];
      const grants: { epoch: bigint; end: bigint }[] = [];
      let fenced = 0;

      const writer = async (name: number) => {
        for (let life = 0; life < 6; life += 1) {
          const instance = instances[(name + life) % instances.length] as Scene;
          const { writerEpoch } = await instance.get(made.id);
          const open = {
            trajectoryId: made.id,
            uid: made.uid,
            writerId: `${name}/${life}`,
            expectedNextStepNumber: undefined,
          };
          const grant = await instance.store
            .openForAppend(instance.caller, { ...open, takeOverEpoch: writerEpoch })
            .catch((error) => {
              expect(error).toMatchObject({ reason: 'WRITER_FENCED' });
            });
          if (grant === undefined) continue;
          grants.push({ epoch: grant.epoch, end: grant.trajectory.nextStepNumber });
          for (let number = grant.trajectory.nextStepNumber, i = 0; i < 8; number += 1n, i += 1) {
            const word = `${grant.epoch}:${number}`;
            const other = instances[(name + i) % instances.length] as Scene;
            await other.get(made.id); // lets the other writers open meanwhile
            const outcome = await other
              .append(made, [wordStep(number, word)], { writerEpoch: grant.epoch })
              .catch((error) => {
                if (!(error instanceof AnabranchError)) throw error;
                expect(error.reason).toBe('WRITER_FENCED');
              });
            if (outcome === undefined) {
              fenced += 1;
              break;
            }
            acked.push({ epoch: grant.epoch, number, word });
          }
        }
      };
      await Promise.all([0, 1, 2, 3].map(writer));

      const steps = await first.steps(made);
      expect(steps.map(({ step }) => wordOf(step))).toEqual(
        steps.map(({ step }) => `${step.writerEpoch}:${step.stepNumber}`),
      );
      for (const { number, word } of acked)
        expect(wordOf((steps[Number(number)] as (typeof steps)[number]).step)).toBe(word);
      expect(steps).toHaveLength(acked.length);
      const epochs = steps.map(({ step }) => step.writerEpoch);
      for (const [i, epoch] of epochs.entries()) if (i > 0) expect(epoch >= (epochs[i - 1] as bigint)).toBe(true);
      for (const { epoch, end } of grants)
        for (const { step } of steps.slice(Number(end))) expect(step.writerEpoch >= epoch).toBe(true);
      expect(new Set(grants.map(({ epoch }) => epoch)).size).toBe(grants.length);
      expect(fenced).toBeGreaterThan(0);
    });
  });

  it('F1: with a concurrent open and append, either the append commits before the grant, or it is fenced', async () => {
    await withStores(async ([one, two]) => {
      const scene = new Scene(one as Store);
      const instance = new Scene(two as Store, scene.namespace);
      for (let round = 0; round < 25; round += 1) {
        const made = await scene.create();
        const epoch = await scene.open(made, 'old');
        const open = { trajectoryId: made.id, uid: undefined, writerId: 'new', expectedNextStepNumber: undefined };
        const [appended, grant] = await Promise.allSettled([
          scene.append(made, [wordStep(0n, 'old')], { writerEpoch: epoch }),
          instance.store.openForAppend(instance.caller, { ...open, takeOverEpoch: epoch }),
        ]);
        if (grant.status === 'rejected') throw grant.reason;
        const { nextStepNumber } = grant.value.trajectory;
        const stored = appended.status === 'fulfilled';
        if (!stored) expect(appended.reason).toMatchObject({ reason: 'WRITER_FENCED' });
        expect(nextStepNumber).toBe(stored ? 1n : 0n);
        expect((await instance.get(made.id)).nextStepNumber).toBe(nextStepNumber);
      }
    });
  });

  it('ID1, I2: one request sent concurrently to both instances creates one trajectory', async () => {
    await withStores(async (stores) => {
      const { namespace } = new Scene(on.store);
      const instances = stores.map((store) => new Scene(store, namespace));
      for (let round = 0; round < 10; round += 1) {
        const key = { rpc: 'CreateTrajectory', requestId: `${round}`, requestDigest: 'same' };
        const made = await Promise.all([...instances, ...instances].map((instance) => instance.create({}, key)));
        expect(new Set(made.map(({ id }) => id)).size).toBe(1);
      }
    });
  });

  it('R1: steps acked by one instance can be read from the other at once', async () => {
    await withStores(async ([one, two]) => {
      const scene = new Scene(one as Store);
      const instance = new Scene(two as Store, scene.namespace);
      const made = await scene.create();
      for (let n = 0n; n < 20n; n += 1n) {
        await (n % 2n === 0n ? scene : instance).append(made, [wordStep(n, `${n}`)]);
        expect((await (n % 2n === 0n ? instance : scene).words(made)).at(-1)).toBe(`${n}`);
      }
    });
  });

  it('W7: groups of two instances over the same trajectories and states do not deadlock and lose no step', async () => {
    await withStores(async (stores) => {
      const namespace = new Scene(on.store).namespace;
      const instances = stores.map((store) => new Scene(store, namespace));
      const [first] = instances as [Scene];
      const made = await Promise.all(Array.from({ length: 12 }, () => first.create()));
      const shared = newState('shared by all');
      const run = async (instance: Scene, mine: (i: number) => boolean, reversed: boolean) => {
        for (let n = 0n; n < 12n; n += 1n) {
          const own = made.filter((_, i) => mine(i));
          const state = newState(`state ${n}`);
          const refs = [stateRef(shared, 'a'), stateRef(state, 'b')];
          const batches = own.map((each) =>
            instance.batch(each, [makeStep(n, { states: refs })], { states: [state, shared] }),
          );
          let left = reversed ? batches.reverse() : batches;
          for (let wait: 'never' | 'bounded' = 'never'; left.length > 0; wait = 'bounded') {
            const outcomes = await instance.store.append(left, wait);
            left = left.filter((_, i) => outcomes[i]?.kind === 'busy');
            for (const outcome of outcomes) if (outcome.kind !== 'busy') committed(outcome);
          }
        }
      };
      await Promise.all([
        run(instances[0] as Scene, (i) => i % 2 === 0, false),
        run(instances[1] as Scene, (i) => i % 2 === 1, true),
        // The same steps again, through the other instance: duplicates or new steps, in any order.
        run(instances[1] as Scene, (i) => i % 2 === 0, true),
      ]);
      for (const each of made) expect(await first.steps(each)).toHaveLength(12);
      expect((await readWhole(on.store, namespace, shared.digest)).toString()).toBe('shared by all');
    });
  });
});
