import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Caller } from '../../src/domain/caller.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { IdempotencyKey } from '../../src/store/contract/request.ts';
import type { ClaimRequest } from '../../src/store/contract/rollout.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { App } from '../../src/stream/app.ts';
import { type ClaimCall, claimRollouts } from '../../src/stream/rollouts/claim.ts';
import type { AppSettings } from '../../src/stream/settings.ts';
import { describeApp } from '../service/on_app.ts';
import { openOn } from '../store/on_store.ts';
import { RolloutScene, tokenOf } from '../store/rollout_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { letPass } from '../store/time_travel.ts';
import { wordStep } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

const NEVER = 3_600_000;

describeApp('ClaimRollouts', (on) => {
  async function withApp(
    settings: Partial<AppSettings>,
    use: (scene: RolloutScene, claim: Claim, app: App) => Promise<void>,
    store: Store = on.store,
  ) {
    const app = on.app(settings, store);
    const scene = new RolloutScene(on.store);
    try {
      await use(scene, (fields) => claimRollouts(app, callOf(scene.caller, fields)), app);
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  /** A store in which the test decides when a claim starts, and which records the requests of each call. */
  function gated() {
    const calls: (readonly ClaimRequest[])[] = [];
    const gates: PromiseWithResolvers<void>[] = [];
    const begun: PromiseWithResolvers<void>[] = [];
    const store = wrappedStore(on.store, {
      claimRollouts: async (requests) => {
        const gate = Promise.withResolvers<void>();
        gates.push(gate);
        calls.push(requests);
        begun[calls.length - 1]?.resolve();
        await gate.promise;
        return on.store.claimRollouts(requests);
      },
    });
    const begins = (call: number) => {
      begun[call] ??= Promise.withResolvers<void>();
      if (calls.length > call) begun[call].resolve();
      return begun[call].promise;
    };
    return { store, calls, begins, open: (call: number) => gates[call]?.resolve() };
  }

  it('Q2: concurrent requests share a call of the store, later ones share the next, and each gets its own claims', async () => {
    const { store, calls, begins, open } = gated();
    const use = async (scene: RolloutScene, claim: Claim) => {
      const { stage } = await scene.place();
      await scene.queue(stage, 6);
      const asked = [1, 2, 1].map((maxRollouts, i) => claim({ stageId: stage.id, maxRollouts, workerId: `w${i}` }));
      await begins(0);
      const late = [claim({ stageId: stage.id, workerId: 'late' }), claim({ stageId: stage.id, workerId: 'later' })];
      const nowhere = refusalOf(claim({ stageId: randomUUID() }));
      open(0);
      await begins(1);
      open(1);
      const claimed = await Promise.all([...asked, ...late]);
      expect(claimed.map(({ claims }) => claims.map(({ rollout }) => rollout.workerId))).toEqual([
        ['w0'],
        ['w1', 'w1'],
        ['w2'],
        ['late'],
        ['later'],
      ]);
      expect(new Set(claimed.flatMap(({ claims }) => claims.map(({ rollout }) => rollout.id))).size).toBe(6);
      expect(await nowhere, 'one refusal is one refusal').toMatchObject({ reason: 'STAGE_NOT_FOUND' });
      expect(calls.map((requests) => requests.length)).toEqual([3, 3]);
    };
    await withApp({}, use, store);
  });

  it('N1: a request id reaches no claim of another namespace, even if both read alike when joined by /', () =>
    withApp({}, async (scene, claim, app) => {
      const other = new RolloutScene(on.store, `${scene.namespace}/ClaimRollouts`);
      const [place, otherPlace] = [await scene.place(), await other.place()];
      const [own] = await scene.queue(place.stage, 1);
      const [others] = await other.queue(otherPlace.stage, 1);
      const both = await Promise.all([
        claimRollouts(app, callOf(other.caller, { key: keyOf('z') })),
        claim({ key: keyOf('ClaimRollouts/z') }),
      ]);
      expect(both.map(({ claims }) => claims.map(({ rollout }) => rollout.id))).toEqual([[others], [own]]);
    }));

  it('Q2: a caller that cancelled before its turn is left out of the call', async () => {
    const { store, calls, begins, open } = gated();
    const use = async (scene: RolloutScene, claim: Claim) => {
      const { stage } = await scene.place();
      await scene.queue(stage, 2);
      const first = claim({ stageId: stage.id });
      await begins(0);
      const gone = new AbortController();
      const abandoned = claim({ stageId: stage.id, waitMs: 5000, signal: gone.signal });
      gone.abort();
      open(0);
      expect((await first).claims).toHaveLength(1);
      expect((await abandoned).claims).toEqual([]);
      expect(calls.map((requests) => requests.length)).toEqual([1]);
      expect(await scene.claims({ stageId: stage.id }), 'it is left for others').toHaveLength(1);
    };
    await withApp({}, use, store);
  });

  it('an error of one request does not affect the others, and an outage affects all', async () => {
    let fault: (requests: readonly ClaimRequest[]) => void = () => undefined;
    const store = wrappedStore(on.store, {
      claimRollouts: async (requests) => {
        fault(requests);
        return on.store.claimRollouts(requests);
      },
    });
    const use = async (scene: RolloutScene, claim: Claim) => {
      const { stage } = await scene.place();
      await scene.queue(stage, 4);
      fault = (requests) => {
        if (requests.some(({ workerId }) => workerId === 'odd')) throw new Error('odd');
      };
      const ask = () => Promise.allSettled(['a', 'odd', 'b'].map((workerId) => claim({ stageId: stage.id, workerId })));
      expect((await ask()).map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
      let calls = 0;
      fault = () => {
        calls += 1;
        throw new AnabranchError('DATABASE_UNAVAILABLE', 'down');
      };
      expect((await ask()).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
      expect(calls).toBe(1);
    };
    await withApp({}, use, store);
  });

  it('Q2: a waiting claim is notified of new rollouts, by run, by stage, or of any', () =>
    withApp({ pollMs: NEVER }, async (scene, claim) => {
      for (const by of ['run', 'stage', 'any'] as const) {
        const { run, stage } = await scene.place();
        const where = { run: { runId: run.id }, stage: { stageId: stage.id }, any: {} }[by];
        const waiting = claim({ ...where, waitMs: 20_000 });
        // Whichever comes first: the first read finds it, or a notification arrives.
        const [id] = await scene.queue(stage, 1);
        const { claims } = await waiting;
        expect(claims.map(({ rollout }) => rollout.id)).toEqual([id]);
      }
    }));

  it('Q2: appends wake no claim that waits for any rollout', async () => {
    let calls = 0;
    const store = wrappedStore(on.store, {
      claimRollouts: (requests) => {
        calls += 1;
        return on.store.claimRollouts(requests);
      },
    });
    const use = async (scene: RolloutScene, claim: Claim) => {
      const other = await scene.createWith(['a']);
      const { stage } = await scene.place();
      const waiting = claim({ waitMs: 20_000 });
      // At once, and after the subscription.
      await expect.poll(() => calls).toBe(2);
      for (let step = 1n; step < 50n; step += 1n) await scene.append(other, [wordStep(step, 'b')]);
      expect(calls).toBe(2);
      const [id] = await scene.queue(stage, 1);
      expect((await waiting).claims.map(({ rollout }) => rollout.id)).toEqual([id]);
    };
    await withApp({ pollMs: NEVER, claimRestMs: 0 }, use, store);
  });

  it('Q2: a waiting claim is notified of a released rollout and of a resumed stage, at the latest by polling', () =>
    withApp({ pollMs: 20 }, async (scene, claim) => {
      const { run, stage } = await scene.place();
      await scene.queue(stage, 1);
      const [held] = await scene.claims({ stageId: stage.id });
      const waiting = claim({ runId: run.id, waitMs: 20_000, workerId: 'next' });
      const token = { id: held!.rollout.id, attempt: 1 };
      await scene.release(token);
      expect((await waiting).claims[0]?.rollout).toMatchObject({ attempt: 2, workerId: 'next' });
    }));

  it('Q3: a waiting claim tries again when a delayed rollout becomes claimable, without notifications and polls', async () => {
    const outside = await outsideSql(on.database);
    let looks = 0;
    let scene: RolloutScene;
    const store = wrappedStore(on.store, {
      claimRollouts: async (requests) => {
        const outcomes = await on.store.claimRollouts(requests);
        looks += 1;
        // The first read is before the claim waits, the second one when it starts to wait.
        if (looks !== 2) return outcomes;
        expect(outcomes).toMatchObject([{ claims: [], nextInMs: expect.any(Number) }]);
        await letPass(outside, scene, 300);
        return outcomes.map((outcome) => ({ ...outcome, nextInMs: 1 }));
      },
    });
    const use = async (here: RolloutScene, claim: Claim) => {
      scene = here;
      const { stage } = await scene.place();
      await scene.queue(stage, 1, { retryDelayMs: 300_000 });
      await scene.release(tokenOf(await scene.claimOne({ stageId: stage.id })));
      const { claims } = await claim({ stageId: stage.id, waitMs: 25_000 });
      expect(claims.map(({ rollout }) => rollout.attempt)).toEqual([2]);
      expect(looks).toBe(3);
    };
    await withApp({ pollMs: NEVER }, use, store);
    await outside.close();
  });

  it('Q2: waiting ends at its time limit, when the caller cancels, and when the server drains', () =>
    withApp({ pollMs: NEVER }, async (scene, claim, app) => {
      const { stage } = await scene.place();
      const begun = performance.now();
      expect(await claim({ stageId: stage.id, waitMs: 60 })).toMatchObject({ claims: [], drained: false });
      expect(performance.now() - begun).toBeGreaterThanOrEqual(50);
      const gone = new AbortController();
      const abandoned = claim({ stageId: stage.id, waitMs: 25_000, signal: gone.signal });
      gone.abort();
      expect((await abandoned).claims).toEqual([]);
      const waiting = claim({ stageId: stage.id, waitMs: 25_000 });
      app.drain.begin();
      expect((await waiting).claims).toEqual([]);
      expect(performance.now() - begun).toBeLessThan(10_000);
    }));

  it('Q2: waiting ends when no more rollouts can come', async () => {
    const looked = Promise.withResolvers<void>();
    const store = wrappedStore(on.store, {
      claimRollouts: async (requests) => {
        const outcomes = await on.store.claimRollouts(requests);
        looked.resolve();
        return outcomes;
      },
    });
    const use = async (scene: RolloutScene, claim: Claim) => {
      const { stage } = await scene.place();
      await scene.queue(stage, 1);
      await scene.store.closeQueue(scene.namespace, stage.id);
      const [held] = await scene.claims({ stageId: stage.id });
      const begun = performance.now();
      const waiting = claim({ stageId: stage.id, waitMs: 25_000 });
      await looked.promise; // at a rollout that is claimed
      await scene.complete(held!);
      expect(await waiting).toMatchObject({ claims: [], drained: true });
      expect(performance.now() - begun).toBeLessThan(10_000);
    };
    await withApp({ pollMs: NEVER }, use, store);
  });

  it('Q2: a waiting claim is notified of the close that leaves no more rollouts, by run or by stage, also on another server', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    let looks = 0;
    let looked = Promise.withResolvers<void>();
    const store = wrappedStore(on.store, {
      claimRollouts: async (requests) => {
        const outcomes = await on.store.claimRollouts(requests);
        looks += 1;
        if (looks === 2) looked.resolve();
        return outcomes;
      },
    });
    const use = async (scene: RolloutScene, claim: Claim) => {
      for (const by of ['run', 'stage'] as const) {
        const { run, stage } = await scene.place();
        looks = 0;
        looked = Promise.withResolvers();
        const waiting = claim({ ...{ run: { runId: run.id }, stage: { stageId: stage.id } }[by], waitMs: 25_000 });
        await looked.promise; // after the claim has subscribed: only a notification can wake it now
        await other.closeQueue(scene.namespace, stage.id);
        expect(await waiting).toEqual({ kind: 'claimed', claims: [], drained: true });
        expect(looks).toBeGreaterThan(2);
      }
    };
    try {
      await withApp({ pollMs: NEVER }, use, store);
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('Q2: a claim on a drained queue tries once and does not wait', async () => {
    let looks = 0;
    const store = wrappedStore(on.store, {
      claimRollouts: (requests) => {
        looks += 1;
        return on.store.claimRollouts(requests);
      },
    });
    const use = async (scene: RolloutScene, claim: Claim) => {
      const { run, stage } = await scene.place();
      await scene.store.closeQueue(scene.namespace, stage.id);
      for (const of of [{ runId: run.id }, { stageId: stage.id }]) {
        looks = 0;
        expect(await claim({ ...of, waitMs: 25_000 })).toMatchObject({ claims: [], drained: true });
        expect(looks).toBe(1);
      }
    };
    await withApp({ pollMs: NEVER }, use, store);
  });

  it('ID1, Q2: a repeated request id returns the same claims, and is refused with a different request', () =>
    withApp({}, async (scene, claim) => {
      const { stage } = await scene.place();
      await scene.queue(stage, 4);
      const key = keyOf(randomUUID());
      const request = { stageId: stage.id, maxRollouts: 2, key };
      const [one, other] = await Promise.all([claim(request), claim(request)]);
      const ids = one.claims.map(({ rollout }) => rollout.id);
      expect(ids).toHaveLength(2);
      expect(other.claims.map(({ rollout }) => rollout.id).sort()).toEqual([...ids].sort());
      expect(await refusalOf(claim({ ...request, key: { ...key, requestDigest: 'another' } }))).toMatchObject({
        reason: 'REQUEST_ID_REUSED',
      });
    }));
});

function keyOf(requestId: string): IdempotencyKey {
  return { rpc: 'ClaimRollouts', requestId, requestDigest: 'request' };
}

type Fields = Partial<ClaimCall['request'] & Omit<ClaimCall, 'request'>>;
type Claim = (fields: Fields) => ReturnType<typeof claimRollouts>;

function callOf(caller: Caller, fields: Fields): ClaimCall {
  const { maxRollouts = 1, waitMs = 0, signal = new AbortController().signal, ...request } = fields;
  return { request: { ...REQUEST, caller, ...request }, maxRollouts, waitMs, signal };
}

const REQUEST: Omit<ClaimCall['request'], 'caller'> = {
  runId: undefined,
  stageId: undefined,
  taskIds: [],
  rolloutIds: [],
  labels: new Map(),
  minPriority: 0,
  workerId: 'worker',
  leaseMs: 60_000,
  countFitting: (claims) => claims.length,
  key: undefined,
};
