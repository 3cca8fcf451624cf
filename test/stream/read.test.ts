import { expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { all, type DecodedRead, describeApp, state, step, wordOf } from '../service/on_app.ts';
import { openOn } from '../store/on_store.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

const letters = (text: string) => [...text];

describeApp('ReadSteps over a range', (on) => {
  it('RD1: reads [start, end) across branch points, with one owner for each message, and the number to continue at', async () => {
    const scene = on.scene();
    const root = await scene.createWith(letters('abcde'));
    const branch = await scene.branch(root, 1n);
    await scene.write(branch, [step(2n, 'C'), step(3n, 'D')]);
    const leaf = await scene.branch(branch, 3n);
    await scene.write(leaf, [step(4n, 'E')]);
    const read = await all(scene.read(leaf, { startStepNumber: 1n }));
    expect(
      read.map(({ trajectoryId, steps, nextStepNumber }) => [trajectoryId, steps.map(wordOf), nextStepNumber]),
    ).toEqual([
      [root.id, ['b'], 2n],
      [branch.id, ['C', 'D'], 4n],
      [leaf.id, ['E'], 5n],
    ]);
    expect(await scene.words(leaf)).toEqual(letters('abCDE'));
    expect((await scene.steps(leaf, { startStepNumber: 1n, endStepNumber: 3n })).map(wordOf)).toEqual(['b', 'C']);
  });

  it('RD1: a start at the end is allowed, beyond it is refused with the end, and a range may extend beyond it', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(letters('abc'));
    expect(await all(scene.read(trajectory, { startStepNumber: 3n }))).toEqual([]);
    expect(await scene.steps(trajectory, { endStepNumber: 99n })).toHaveLength(3);
    expect(await refusalOf(all(scene.read(trajectory, { startStepNumber: 4n })))).toMatchObject({
      reason: 'RANGE_BEYOND_END',
      metadata: { next_step_number: '3' },
    });
    expect(await refusalOf(all(scene.read(trajectory, { startStepNumber: 2n, endStepNumber: 1n })))).toMatchObject({
      violations: [{ field: 'end_step_number' }],
    });
    expect(await refusalOf(all(scene.read(trajectory, { startStepNumber: -1n })))).toMatchObject({
      violations: [{ field: 'start_step_number' }],
    });
  });

  it('RD1: the end is fixed when the call starts', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(letters('ab'));
    const reading = scene.read(trajectory);
    const first = await reading.next();
    await scene.write(trajectory, [step(2n, 'c')]);
    expect((first.value as DecodedRead).nextStepNumber).toBe(2n);
    expect((await reading.next()).done).toBe(true);
  });

  it('RD1: a trajectory that is deleted meanwhile is TRAJECTORY_DELETED, never a short success', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const large = 'x'.repeat(200 * 1024);
    await scene.write(
      trajectory,
      Array.from({ length: 8 }, (_, i) => step(BigInt(i), large)),
    );
    const reading = scene.read(trajectory);
    await reading.next();
    await scene.rpc.deleteTrajectory({ trajectoryId: trajectory.id });
    expect(await refusalOf(all(reading))).toMatchObject({
      reason: 'TRAJECTORY_DELETED',
      metadata: { trajectory_id: trajectory.id },
    });
    expect((await refusalOf(all(scene.read(trajectory)))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('RD3: messages stay well below 1 MiB, even for small steps with many states', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const states = Array.from({ length: 16 }, (_, i) =>
      state('s', { name: `n${i}`.padEnd(60, 'x'), mediaType: 'm'.repeat(120) }),
    );
    await scene.write(
      trajectory,
      Array.from({ length: 300 }, (_, i) => step(BigInt(i), 'w', { states })),
    );
    const messages = await all(scene.read(trajectory));
    expect(messages.flatMap(({ steps }) => steps)).toHaveLength(300);
    for (const { steps } of messages) expect(steps.length * 16 * 250).toBeLessThan(1024 * 1024);
  });

  it('A2: a drain ends the read of a range with SERVER_DRAINING', async () => {
    const app = on.app();
    const scene = on.scene(app);
    const trajectory = await scene.createWith(letters('abc'));
    const branch = await scene.branch(trajectory, 1n);
    await scene.write(branch, [step(2n, 'C')]);
    const reading = scene.read(branch);
    await reading.next();
    app.drain.begin();
    expect((await refusalOf(all(reading))).reason).toBe('SERVER_DRAINING');
    await app.close();
  });
});

describeApp('ReadSteps that follows', (on) => {
  it('R2, RD2: delivers every step from the start once, in order, then live, and ends with the seal', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(letters('abc'));
    const following = all(scene.read(trajectory, { startStepNumber: 1n, follow: true }));
    await scene.write(trajectory, [step(3n, 'd'), step(4n, 'e')]);
    await scene.write(trajectory, [step(5n, 'f')], { status: 'COMPLETED', message: '' });
    const read = await following;
    expect(read.flatMap(({ steps }) => steps.map(wordOf))).toEqual(letters('bcdef'));
    expect(read.at(-1)).toMatchObject({ sealed: true, nextStepNumber: 6n });
    expect(read.slice(0, -1).every(({ sealed }) => !sealed)).toBe(true);
  });

  it('RD2: reports that it is caught up, even without steps to read, and again as a sign of life', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const reading = scene.read(trajectory, { follow: true });
    const mark = { trajectoryId: '', steps: [], nextStepNumber: 0n, caughtUp: true, sealed: false };
    expect((await reading.next()).value).toEqual(mark);
    expect((await reading.next()).value).toEqual(mark);
    await scene.write(trajectory, [step(0n, 'a')]);
    for (;;) {
      const { value } = await reading.next();
      if (value?.steps.length === 0) continue;
      expect(value).toMatchObject({ nextStepNumber: 1n, caughtUp: true });
      break;
    }
    await reading.return();
    expect(scene.app.changes.listeners).toBe(0);
  });

  it('RD2: ends at the requested end, live or not', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(letters('abc'));
    const read = (endStepNumber: bigint) => scene.steps(trajectory, { endStepNumber, follow: true });
    expect((await read(2n)).map(wordOf)).toEqual(['a', 'b']);
    const live = read(5n);
    await scene.write(trajectory, [step(3n, 'd'), step(4n, 'e'), step(5n, 'f')]);
    expect((await live).map(wordOf)).toEqual(letters('abcde'));
    expect(await read(0n)).toEqual([]);
  });

  it('RD2: a sealed trajectory is read to its end at once', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    await scene.write(trajectory, [step(0n, 'a')], { status: 'FAILED', message: '' });
    expect(await all(scene.read(trajectory, { follow: true }))).toMatchObject([
      { nextStepNumber: 1n, caughtUp: true, sealed: true },
    ]);
    expect(await all(scene.read(trajectory, { follow: true, startStepNumber: 1n }))).toMatchObject([
      { steps: [], nextStepNumber: 1n, sealed: true },
    ]);
  });

  it('R2: twenty followers from any step, with four writers in turn, miss no step and get none twice', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const total = 400;
    const followers = Array.from({ length: 20 }, async (_, i) => {
      const start = BigInt(i % 5);
      while ((await scene.now(trajectory)).nextStepNumber < start) await nextIteration();
      const seen: bigint[] = [];
      for await (const { steps } of scene.read(trajectory, { startStepNumber: start, follow: true })) {
        for (const { stepNumber } of steps) seen.push(stepNumber);
        if (i % 3 === 0) await nextIteration();
      }
      return (
        seen.map((number, at) => number === start + BigInt(at)).every(Boolean) && seen.length === total - Number(start)
      );
    });
    for (let from = 0; from < total; from += 100) {
      const steps = Array.from({ length: 100 }, (_, i) => step(BigInt(from + i), 'x'));
      await scene.write(trajectory, steps, from + 100 === total ? { status: 'COMPLETED', message: '' } : undefined);
    }
    expect(await Promise.all(followers)).toEqual(followers.map(() => true));
    expect(scene.app.changes.listeners).toBe(0);
    expect(scene.app.feeds.followers).toBe(0);
  });

  it('R3: a hundred followers at the live end share one check and one page', async () => {
    const { store, counts } = counting(on.store);
    const app = on.app({ pollMs: 60_000 }, store);
    const scene = on.scene(app);
    const trajectory = await scene.create();
    const followers = Array.from({ length: 100 }, () => scene.read(trajectory, { follow: true }));
    await Promise.all(followers.map((one) => one.next())); // caught up
    const next = followers.map((one) => one.next());
    await nextIteration();
    counts.clear();
    await on.scene(undefined, scene.caller.namespace).write(trajectory, [step(0n, 'live')]);
    const read = await Promise.all(next);
    expect(read.every(({ value }) => value?.steps.length === 1)).toBe(true);
    expect(counts.get('readEncodedSteps')).toBe(1);
    // None, if the read in progress already found the step.
    expect(counts.get('getTrajectory') ?? 0).toBeLessThanOrEqual(3);
    await Promise.all(followers.map((one) => one.return()));
    await app.close();
  });

  it('RD2: the next poll makes up for a lost notification, one poll for all followers', async () => {
    const deaf = wrappedStore(on.store, { onChange: () => () => undefined });
    const app = on.app({ pollMs: 20 }, deaf);
    const scene = on.scene(app);
    const trajectory = await scene.create();
    const following = scene.steps(trajectory, { follow: true });
    await on.scene(undefined, scene.caller.namespace).write(trajectory, [step(0n, 'a'), step(1n, 'b')], {
      status: 'COMPLETED',
      message: '',
    });
    expect((await following).map(wordOf)).toEqual(['a', 'b']);
    await app.close();
  });

  it('A15: if the database is replaced, followers end and can resume, and nothing that was kept is used', async () => {
    const listeners: (() => void)[] = [];
    const reads: string[] = [];
    const store = wrappedStore(on.store, {
      onReplaced: (listener) => {
        listeners.push(listener);
        return () => undefined;
      },
      getLineage: (...args) => {
        reads.push('lineage');
        return on.store.getLineage(...args);
      },
      listTokenSecrets: () => {
        reads.push('secrets');
        return on.store.listTokenSecrets();
      },
    });
    const app = on.app({ pollMs: 60_000 }, store);
    const scene = on.scene(app);
    const root = await scene.createWith(letters('abc'));
    const branch = await scene.branch(root, 1n);
    const use = async () => {
      expect((await scene.steps(branch)).map(wordOf)).toEqual(letters('ab'));
      await app.tokens.seal('text', 'binding');
    };
    for (let times = 0; times < 2; times += 1) await use();
    expect(reads.sort()).toEqual(['lineage', 'secrets']);
    const [waiting, resumed] = [0, 1].map(() => scene.read(branch, { follow: true, startStepNumber: 2n }));
    await waiting!.next(); // caught up
    const next = refusalOf(waiting!.next());
    await nextIteration();
    for (const listener of listeners) listener();
    expect(await next).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    await use();
    expect(reads.sort()).toEqual(['lineage', 'lineage', 'secrets', 'secrets']);
    await scene.write(branch, [step(2n, 'C')], { status: 'COMPLETED', message: '' });
    expect((await all(resumed!)).flatMap(({ steps }) => steps.map(wordOf))).toEqual(['C']);
    await app.close();
  });

  it('RD2: a step committed between the first read and the subscription is delivered without waiting', async () => {
    let between: (() => Promise<unknown>) | undefined;
    const late = wrappedStore(on.store, {
      getTrajectory: async (...args) => {
        const found = await on.store.getTrajectory(...args);
        const commit = between;
        between = undefined;
        await commit?.();
        return found;
      },
    });
    // No poll happens, and the notification arrives before anybody listens.
    const app = on.app({ pollMs: 60_000 }, late);
    const scene = on.scene(app);
    const trajectory = await scene.createWith(['a']);
    const other = on.scene(undefined, scene.caller.namespace);
    between = () => other.write(trajectory, [step(1n, 'b')], { status: 'COMPLETED', message: '' });
    expect((await scene.steps(trajectory, { follow: true })).map(wordOf)).toEqual(['a', 'b']);
    await app.close();
  });

  it('RD1, RD2: followers of a deleted trajectory end with TRAJECTORY_DELETED, also if its id is created again', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a']);
    const reading = scene.read(trajectory, { follow: true });
    await reading.next();
    const waiting = refusalOf(all(reading));
    await scene.rpc.deleteTrajectory({ trajectoryId: trajectory.id });
    await scene.createWith(['ghost']);
    expect((await waiting).reason).toBe('TRAJECTORY_DELETED');
  });

  it('A2: a drain ends followers with SERVER_DRAINING, and a cancelled call just ends', async () => {
    const app = on.app();
    const scene = on.scene(app);
    const trajectory = await scene.createWith(['a']);
    const leaving = new AbortController();
    const gone = scene.read(trajectory, { follow: true, signal: leaving.signal });
    const drained = scene.read(trajectory, { follow: true });
    for (const one of [gone, drained]) expect((await one.next()).value?.steps).toHaveLength(1);
    const end = all(gone);
    leaving.abort();
    expect(await end).toEqual([]);
    const refusal = refusalOf(all(drained));
    app.drain.begin();
    expect((await refusal).reason).toBe('SERVER_DRAINING');
    expect(app.feeds.followers).toBe(0);
    await app.close();
  });

  it('A1: an outage ends followers with DATABASE_UNAVAILABLE, with the number to continue at', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a']);
    let down = false;
    const store = wrappedStore(on.store, {
      getTrajectory: async (namespace, id) => {
        if (down) throw new AnabranchError('DATABASE_UNAVAILABLE', 'down');
        return on.store.getTrajectory(namespace, id);
      },
      findChanges: async (awaited) => {
        if (down) throw new AnabranchError('DATABASE_UNAVAILABLE', 'down');
        return on.store.findChanges(awaited);
      },
    });
    const app = on.app({ pollMs: 10 }, store);
    const reading = on.scene(app, scene.caller.namespace).read(trajectory, { follow: true });
    await reading.next();
    down = true;
    expect((await refusalOf(all(reading))).reason).toBe('DATABASE_UNAVAILABLE');
    await app.close();
  });

  if (on.engine === 'postgres') {
    it('R1, R2: steps written through another instance are delivered to followers on this one', async () => {
      const elsewhere = await openOn(on.database);
      const app = on.app({ pollMs: 200 }, elsewhere);
      const scene = on.scene();
      const trajectory = await scene.createWith(['a']);
      const following = all(on.scene(app, scene.caller.namespace).read(trajectory, { follow: true }));
      await scene.write(trajectory, [step(1n, 'b'), step(2n, 'c')], { status: 'COMPLETED', message: '' });
      expect((await following).flatMap(({ steps }) => steps.map(wordOf))).toEqual(letters('abc'));
      await app.close();
      await elsewhere.close();
    });
  }
});

function counting(store: Store): { store: Store; counts: Map<string, number> } {
  const counts = new Map<string, number>();
  const counted: Store = new Proxy(store, {
    get(target, name) {
      if (name === 'within') return () => counted;
      const own = Reflect.get(target, name, target) as unknown;
      if (typeof own !== 'function') return own;
      return (...args: unknown[]) => {
        counts.set(String(name), (counts.get(String(name)) ?? 0) + 1);
        return own.apply(target, args);
      };
    },
  });
  return { store: counted, counts };
}

/** An iteration of the event loop, in which everything that was ready has run. */
function nextIteration(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 1));
}
