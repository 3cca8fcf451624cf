import { randomUUID } from 'node:crypto';
import { beforeEach, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { applyDuePolicies, startRetention } from '../../src/stream/retention.ts';
import { type AppScene, describeApp, state, step } from '../service/on_app.ts';
import { logger } from '../store/on_store.ts';
import { outsideSql } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { newPolicy } from '../support/retention_policies.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

const NEVER = () => false;
const ALL = { limit: 1000, after: undefined };

describeApp('retention policies in the background', (on) => {
  // Policies of all namespaces are due for whoever asks.
  beforeEach(() => sql('delete from retention_policies where true'));

  const sql = async (text: string) => {
    const outside = await outsideSql(on.database);
    await outside.rows(text);
    await outside.close();
  };
  const createWith = async (scene: AppScene, seed: number): Promise<Trajectory> => {
    const made = await scene.create();
    const states = [0, 1, 2, 3].map((i) => state(`${seed} ${i} `.repeat(1000), { name: 'env' }));
    await scene.write(
      made,
      states.map((each, i) => step(BigInt(i), `${i}`, { states: [each] })),
    );
    return made;
  };
  const keptOf = async (scene: AppScene, of: Trajectory) =>
    (await scene.steps(of)).flatMap(({ stepNumber, states }) =>
      states.some(({ prunedTime }) => prunedTime === undefined) ? [stepNumber] : [],
    );
  const set = (scene: AppScene, policy = newPolicy('p', { keepLast: 1 })) =>
    on.store.setRetentionPolicy(scene.caller.namespace, policy);
  const policyOf = async (scene: AppScene) =>
    (await on.store.listRetentionPolicies(scene.caller.namespace, ALL)).find(({ name }) => name === 'p');
  const settings = { retentionLeaseMs: 60_000, stateTtlHours: 24 };
  const apply = (stopped = NEVER, { store = on.store, retentionLeaseMs = 60_000 } = {}) =>
    applyDuePolicies({ store, logger, settings: { ...settings, retentionLeaseMs }, newLease: randomUUID }, stopped);
  /** The store, with something done before each part of an execution is taken up. */
  const storeWith = (before: (part: number) => Promise<unknown> | unknown): Store => {
    const retain: Store['retain'] = async (...args) => {
      const { asOf, parts } = await on.store.retain(...args);
      const slowly = async function* () {
        let part = 0;
        for await (const each of parts) {
          await before(part++);
          yield each;
        }
      };
      return { asOf, parts: slowly() };
    };
    return wrappedStore(on.store, { retain });
  };

  it('S15: a due policy removes what ApplyRetention would remove, and tells what that was', async () => {
    const scene = on.scene();
    const [first, second] = [await createWith(scene, 1), await createWith(scene, 2)];
    const other = on.scene();
    const untouched = await createWith(other, 3);
    await set(scene);
    expect(await apply()).toBe(1);
    expect([await keptOf(scene, first), await keptOf(scene, second)]).toEqual([[3n], [3n]]);
    expect(await keptOf(other, untouched)).toEqual([0n, 1n, 2n, 3n]);
    const { last } = (await policyOf(scene))!;
    expect(last).toMatchObject({ error: undefined, removed: { states: 6n, steps: 0n, trajectories: 0n } });
    expect(last!.removed.logicalBytes).toBe(6n * 4000n);
    expect(await apply()).toBe(0);
    await expectVerified(on.store);
  });

  it('S15: two instances that apply one policy at once remove the same as one, and nothing else', async () => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let i = 0; i < 6; i += 1) made.push(await createWith(scene, 10 + i));
    await scene.rpc.setTag({ trajectoryId: made[0]!.id, name: 'best', stepNumber: 1n });
    await set(scene);
    const ended = "update retention_policies set lease_end_time = '2000-01-01T00:00:00.000000Z' where true";
    let second: Promise<number> | undefined;
    // The second execution begins in the middle of the first one, whose lease seems to have ended.
    const store = storeWith(async (part) => {
      if (part !== 1) return;
      await sql(ended);
      second = apply();
    });
    await apply(NEVER, { store });
    expect(await second).toBe(1);
    expect(await Promise.all(made.map((each) => keptOf(scene, each)))).toEqual([
      [1n, 3n],
      ...made.slice(1).map(() => [3n]),
    ]);
    expect((await policyOf(scene))!.last).toMatchObject({ error: undefined });
    await expectVerified(on.store);
  });

  it('S15, A2: a draining server stops an execution between two parts, and another one continues it', async () => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let i = 0; i < 4; i += 1) made.push(await createWith(scene, 20 + i));
    await set(scene);
    const drain = { begun: false };
    const reached = Promise.withResolvers<void>();
    const store = storeWith((part) => {
      if (part !== 1) return;
      drain.begun = true;
      reached.resolve();
    });
    const running = startRetention({ store, logger, settings, newLease: randomUUID }, 5, drain);
    await reached.promise;
    await running.stop();
    const kept = await Promise.all(made.map((each) => keptOf(scene, each)));
    expect(kept.map(({ length }) => length).sort()).toEqual([1, 1, 4, 4]);
    expect((await policyOf(scene))!.last).toBeUndefined();
    expect(await apply()).toBe(1);
    expect(await Promise.all(made.map((each) => keptOf(scene, each)))).toEqual(made.map(() => [3n]));
    // What the first server removed is not counted again.
    expect((await policyOf(scene))!.last).toMatchObject({ removed: { states: 6n } });
  });

  it.each(['deleted', 'changed'] as const)('S15: an execution ends when its policy is %s', async (how) => {
    const scene = on.scene();
    const made: Trajectory[] = [];
    for (let i = 0; i < 4; i += 1) made.push(await createWith(scene, 30 + i));
    await set(scene);
    let isLost = false;
    const store = storeWith(async (part) => {
      if (part !== 1 || isLost) return;
      if (how === 'deleted') await on.store.deleteRetentionPolicy(scene.caller.namespace, 'p');
      else await set(scene, newPolicy('p', { keepLast: 4 }));
      await expect.poll(() => isLost, { timeout: 20_000, interval: 5 }).toBe(true);
    });
    const renewing = wrappedStore(store, {
      renewPolicyLease: async (...args: Parameters<Store['renewPolicyLease']>) => {
        const isKept = await on.store.renewPolicyLease(...args);
        isLost ||= !isKept;
        return isKept;
      },
    });
    await apply(NEVER, { store: renewing, retentionLeaseMs: 30 });
    const kept = await Promise.all(made.map((each) => keptOf(scene, each)));
    expect(kept.map(({ length }) => length).sort()).toEqual([1, 1, 4, 4]);
    // The changed policy is applied, too, and finds nothing to remove.
    expect((await policyOf(scene))?.last?.removed.states).toBe(how === 'deleted' ? undefined : 0n);
  });

  it('S15: an execution that fails tells why and what it removed, and other policies are applied', async () => {
    const scene = on.scene();
    await createWith(scene, 40);
    await createWith(scene, 41);
    for (const [thrown, error] of [
      [new AnabranchError('STORAGE_FULL', 'full'), { reason: 'STORAGE_FULL', message: 'full' }],
      [new Error('a secret'), { reason: 'INTERNAL', message: 'An internal error: the log of the server has it.' }],
    ] as const) {
      await on.store.setRetentionPolicy(scene.caller.namespace, newPolicy('another', { names: [error.reason] }));
      await set(scene, newPolicy('p', { keepLast: error.reason === 'INTERNAL' ? 1 : 2 }));
      const store = storeWith((part) => {
        if (part === 1) throw thrown;
      });
      expect(await apply(NEVER, { store })).toBe(2);
      const { last, dueTime } = (await policyOf(scene))!;
      expect(last).toMatchObject({ error, removed: { states: error.reason === 'INTERNAL' ? 1n : 2n } });
      expect(dueTime).toBeGreaterThan(last!.endTime);
    }
  });

  it('S15: a policy of a run that is deleted meanwhile ends without a record', async () => {
    const scene = on.scene();
    const { run } = await scene.rpc.createRun({});
    await createWith(scene, 50);
    await set(scene, newPolicy('p', { runId: run!.id }));
    const claimDuePolicy: Store['claimDuePolicy'] = async (...args) => {
      const due = await on.store.claimDuePolicy(...args);
      if (due !== undefined) await on.store.deleteRun(scene.caller.namespace, run!.id, 'REFUSE');
      return due;
    };
    expect(await apply(NEVER, { store: wrappedStore(on.store, { claimDuePolicy }) })).toBe(1);
    expect(await policyOf(scene)).toBeUndefined();
  });

  it('S15: a server applies policies by itself, unless it is configured not to', async () => {
    const scene = on.scene();
    const made = await createWith(scene, 60);
    let idleLooks = 0;
    const claimDuePolicy: Store['claimDuePolicy'] = (...args) => {
      idleLooks += 1;
      return on.store.claimDuePolicy(...args);
    };
    const idle = on.app({ retentionMs: 0 }, wrappedStore(on.store, { claimDuePolicy }));
    await set(scene);
    const busy = on.app({ retentionMs: 5 });
    await expect.poll(() => keptOf(scene, made), { timeout: 20_000, interval: 20 }).toEqual([3n]);
    await busy.close();
    await idle.close();
    expect(idleLooks).toBe(0);
  });
});
