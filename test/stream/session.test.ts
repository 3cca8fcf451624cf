import { describe, expect, it } from 'vitest';
import type { Caller } from '../../src/domain/caller.ts';
import { AnabranchError, invalidField } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { type App, appWithin } from '../../src/stream/app.ts';
import { commitEntry, type NewEntry } from '../../src/stream/append/entries.ts';
import { type AppScene, all, describeApp, frame, state, step } from '../service/on_app.ts';
import { refusalOf } from '../store/scene.ts';
import { type GivenStep, newSteps } from '../support/given_steps.ts';
import { wordStep } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

type Fence = Pick<NewEntry, 'trajectoryId' | 'uid' | 'writerEpoch'>;

function appendStep(app: App, caller: Caller, fence: Fence, given: GivenStep) {
  return commitEntry(app, caller, { ...fence, ...newSteps([given]), tags: [], seal: undefined });
}

const UNARY = { uid: undefined, writerEpoch: undefined };

describeApp('an append stream', (on) => {
  it('W1: the first writer is granted epoch 1 and gets the next step number', async () => {
    const scene = on.scene();
    const trajectory = await scene.create({ root: wordStep(0n, 'root') });
    const session = await scene.open(trajectory);
    expect(session.opened).toEqual({
      epoch: 1n,
      tookOver: false,
      uid: trajectory.uid,
      nextStepNumber: 1n,
      status: 'RUNNING',
    });
    session.end();
    expect(await all(session.events())).toEqual([]);
  });

  it('W1, F1: a writer that was fenced cannot append, and its error names the current writer', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const old = await scene.open(trajectory, { writerId: 'old' });
    expect(await refusalOf(scene.open(trajectory, { writerId: 'new' }))).toMatchObject({ reason: 'WRITER_FENCED' });
    const young = await scene.open(trajectory, { writerId: 'new', takeOverEpoch: 1n });
    old.push(frame([step(0n, 'late')]));
    young.push(frame([step(0n, 'mine')]));
    young.end();
    expect(await refusalOf(all(old.events()))).toMatchObject({
      reason: 'WRITER_FENCED',
      metadata: { writer_id: 'new', writer_epoch: '2' },
    });
    expect(await all(young.events())).toMatchObject([{ kind: 'ack', nextStepNumber: 1n }]);
    expect(await scene.words(trajectory)).toEqual(['mine']);
  });

  it('W3: frames before a refused one are committed and acked before the error; later ones are dropped', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a'), step(1n, 'b')]));
    session.push(frame([step(2n, 'c')]));
    session.push(frame([step(5n, 'gap')]));
    session.push(frame([step(3n, 'dropped')]));
    const events = session.events();
    expect(await drain(events)).toMatchObject([
      { kind: 'ack', nextStepNumber: 3n },
      { reason: 'STEP_GAP', metadata: { next_step_number: '3' } },
    ]);
    expect(session.accepting).toBe(false);
    expect(await scene.words(trajectory)).toEqual(['a', 'b', 'c']);
  });

  it('W3: a frame is stored completely or not at all', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a'), step(1n, 'b'), step(3n, 'gap')]));
    expect(await drain(session.events())).toMatchObject([{ reason: 'STEP_GAP' }]);
    expect(await scene.words(trajectory)).toEqual([]);
  });

  it('W3: an unreadable frame ends the stream after earlier frames were acked', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a')]));
    session.fail(invalidField('steps[1].info_json', 'must be JSON'));
    session.push(frame([step(1n, 'dropped')]));
    expect(await drain(session.events())).toMatchObject([
      { kind: 'ack', nextStepNumber: 1n },
      { reason: 'INVALID_REQUEST', violations: [{ field: 'steps[1].info_json' }] },
    ]);
    expect(await scene.words(trajectory)).toEqual(['a']);
  });

  it('A15: if the database is replaced, the client learns that, and not of a gap after steps that were lost', async () => {
    const listeners = new Set<() => void>();
    const replace = () => {
      for (const listener of listeners) listener();
    };
    const store = wrappedStore(on.store, {
      onReplaced: (listener) => {
        listeners.add(listener);
        return () => void listeners.delete(listener);
      },
      // A statement of the first append after the failover finds the new database.
      append: async (...args) => {
        if (isLost) replace();
        return on.store.append(...args);
      },
    });
    let isLost = false;
    const scene = on.scene(on.app({}, store));
    const [busy, idle] = [await scene.open(await scene.create()), await scene.open(await scene.create())];
    isLost = true;
    busy.push(frame([step(1n, 'after a step that was lost')]));
    for (const session of [busy, idle])
      expect(await drain(session.events())).toMatchObject([{ reason: 'DATABASE_UNAVAILABLE' }]);
    const kept = listeners.size;
    const ended = await scene.open(await scene.create());
    ended.end();
    expect([listeners.size, await drain(ended.events())]).toEqual([kept, []]);
  });

  it('W3: an empty frame is refused', async () => {
    const scene = on.scene();
    const session = await scene.open(await scene.create());
    session.push(frame([]));
    expect(await drain(session.events())).toMatchObject([
      { reason: 'INVALID_REQUEST', violations: [{ field: 'steps' }] },
    ]);
  });

  it('W4: acks are cumulative and merged: while nobody reads them only the latest waits', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    for (let i = 0n; i < 50n; i += 1n) session.push(frame([step(i, `${i}`)]));
    await scene.app.committer.idle();
    session.end();
    const events = await drain(session.events());
    expect(events).toMatchObject([{ kind: 'ack', nextStepNumber: 50n, duplicateSteps: 0n }]);
  });

  it('W2, W4, W6: replayed steps are acked as duplicates, never beyond what this stream sent', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b', 'c', 'd']);
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a'), step(1n, 'b')]));
    session.end();
    expect(await drain(session.events())).toMatchObject([{ kind: 'ack', nextStepNumber: 2n, duplicateSteps: 2n }]);
    const other = await scene.open(trajectory);
    other.push(frame([step(1n, 'other')]));
    expect(await drain(other.events())).toMatchObject([{ reason: 'STEP_CONFLICT' }]);
  });

  it('W4: an ack never decreases, also if older steps are sent again after newer ones', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b', 'c', 'd']);
    const session = await scene.open(trajectory);
    const events = session.events();
    session.push(frame([step(2n, 'c'), step(1n, 'b')]));
    expect((await events.next()).value).toMatchObject({ kind: 'ack', nextStepNumber: 3n, duplicateSteps: 2n });
    session.push(frame([step(0n, 'a')]));
    expect((await events.next()).value).toMatchObject({ kind: 'ack', nextStepNumber: 3n, duplicateSteps: 3n });
    session.push(frame([step(4n, 'e')]));
    expect((await events.next()).value).toMatchObject({ kind: 'ack', nextStepNumber: 5n, duplicateSteps: 3n });
    session.end();
    expect(await drain(events)).toEqual([]);
  });

  it('W5: a seal follows its steps, is acked once they are durable, and ends the stream', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a')], { status: 'COMPLETED', message: 'done' }));
    expect(await drain(session.events())).toMatchObject([
      { kind: 'ack', nextStepNumber: 1n },
      { kind: 'sealed', status: 'COMPLETED', message: 'done', nextStepNumber: 1n },
    ]);
    expect(await scene.now(trajectory)).toMatchObject({ status: 'COMPLETED', statusMessage: 'done' });
  });

  it('W5: a repeated equal seal gets the same answer, a different one is refused, and so is a frame after a seal', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const seal = { status: 'FAILED', message: 'no fuel' } as const;
    const first = await scene.write(trajectory, [step(0n, 'a')], seal);
    expect(await scene.write(trajectory, [], seal)).toEqual([first.at(-1)]);
    const other = await refusalOf(scene.write(trajectory, [], { status: 'COMPLETED', message: '' }));
    expect(other.reason).toBe('TRAJECTORY_SEALED');
    const session = await scene.open(trajectory);
    session.push(frame([], seal));
    session.push(frame([step(1n, 'b')]));
    expect(await drain(session.events())).toMatchObject([
      { kind: 'sealed' },
      { reason: 'INVALID_REQUEST', violations: [{ field: 'seal' }] },
    ]);
  });

  it('W7: push asks to stop reading while the window is full, and room resolves when reading may continue', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    expect(session.push(frame([step(0n, 'a')], undefined, LIMITS.streamWindowBytes - 1))).toBe(true);
    expect(session.push(frame([step(1n, 'b')], undefined, 1))).toBe(false);
    await session.room();
    expect(session.push(frame([step(2n, 'c')]))).toBe(true);
    session.end();
    await drain(session.events());
    expect(await scene.words(trajectory)).toEqual(['a', 'b', 'c']);
  });

  it('W7: room also resolves for a stream that was refused meanwhile', async () => {
    const scene = on.scene();
    const session = await scene.open(await scene.create());
    expect(session.push(frame([step(7n, 'gap')], undefined, LIMITS.streamWindowBytes))).toBe(false);
    await session.room();
    expect(session.accepting).toBe(false);
  });

  it('D1: frames received from a client that disconnected are still committed, and nothing is left waiting', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a')]));
    session.push(frame([step(1n, 'b')]));
    session.abandon();
    session.push(frame([step(2n, 'after')]));
    await scene.app.committer.idle();
    expect(await scene.words(trajectory)).toEqual(['a', 'b']);
    expect(scene.app.committer.pending).toBe(0);
  });

  it('A2: a drain commits and acks the received frames, then ends the stream with SERVER_DRAINING; new streams are refused', async () => {
    const app = on.app();
    const scene = on.scene(app);
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a')]));
    app.drain.begin();
    session.push(frame([step(1n, 'too late')]));
    expect(await drain(session.events())).toMatchObject([
      { kind: 'ack', nextStepNumber: 1n },
      { reason: 'SERVER_DRAINING' },
    ]);
    expect((await refusalOf(scene.open(trajectory))).reason).toBe('SERVER_DRAINING');
    await app.close();
    const other = on.scene(undefined, scene.caller.namespace);
    expect(await other.words(trajectory)).toEqual(['a']);
  });

  it('B3: a stream on a trajectory that is deleted meanwhile ends with NOT_FOUND, also if the id is created again', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a']);
    const session = await scene.open(trajectory);
    await scene.rpc.deleteTrajectory({ trajectoryId: trajectory.id });
    const again = await scene.create({ id: trajectory.id });
    session.push(frame([step(0n, 'ghost')]));
    expect(await drain(session.events())).toMatchObject([{ reason: 'TRAJECTORY_NOT_FOUND' }]);
    expect(await scene.words(again)).toEqual([]);
  });

  it('W9: a digest of a state that was never uploaded is refused, and nothing of its frame is stored', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const session = await scene.open(trajectory);
    session.push(frame([step(0n, 'a', { states: [state('kept')] })]));
    session.push(frame([step(1n, 'b', { states: [state(undefined, { digest: 'ab'.repeat(32) })] })]));
    expect(await drain(session.events())).toMatchObject([
      { kind: 'ack', nextStepNumber: 1n },
      { reason: 'STATE_NOT_FOUND', metadata: { digest: 'ab'.repeat(32) } },
    ]);
  });
});

describeApp('a unary write', (on) => {
  it('W8: is accepted without an epoch only if the trajectory never had a writer', async () => {
    const scene = on.scene();
    const { id: trajectoryId } = await scene.create();
    const append = (number: bigint, fields: { uid?: string; writerEpoch?: bigint } = {}) =>
      appendStep(scene.app, scene.caller, { trajectoryId, ...UNARY, ...fields }, step(number, 'x'));
    expect(await append(0n)).toMatchObject({ nextStepNumber: 1n, duplicates: 0 });
    expect(await append(0n)).toMatchObject({ nextStepNumber: 1n, duplicates: 1 });
    (await scene.open({ id: trajectoryId })).abandon();
    expect((await refusalOf(append(1n))).reason).toBe('WRITER_FENCED');
    expect(await append(1n, { writerEpoch: 1n })).toMatchObject({ nextStepNumber: 2n });
    expect((await refusalOf(append(2n, { writerEpoch: 1n, uid: crypto.randomUUID() }))).reason).toBe(
      'TRAJECTORY_NOT_FOUND',
    );
  });

  it('W5, W8: seals, and returns the sealed trajectory', async () => {
    const scene = on.scene();
    const { id: trajectoryId } = await scene.createWith(['a']);
    const seal = { status: 'CANCELLED', message: 'enough' } as const;
    const writer = { trajectoryId, ...UNARY, writerEpoch: 1n };
    await commitEntry(scene.app, scene.caller, { ...writer, steps: [], states: [], tags: [], seal });
    expect(await scene.now({ id: trajectoryId })).toMatchObject({
      status: 'CANCELLED',
      statusMessage: 'enough',
      nextStepNumber: 1n,
    });
    const late = appendStep(scene.app, scene.caller, writer, step(1n, 'late'));
    expect((await refusalOf(late)).reason).toBe('TRAJECTORY_SEALED');
  });
});

describeApp('a unary write whose caller cancels', (on) => {
  /** The app as one caller uses it, who can cancel. */
  const within = (scene: AppScene) => {
    const controller = new AbortController();
    const app = appWithin(scene.app, { signal: controller.signal });
    const append = (trajectory: Trajectory) => {
      const writer = { trajectoryId: trajectory.id, ...UNARY };
      return appendStep(app, scene.caller, writer, step(0n, 'x')).catch((error: unknown) => error);
    };
    return { append, leave: (reason: Error) => controller.abort(reason) };
  };

  /** An app whose store commits only when the test says so. */
  const held = () => {
    const begun = Promise.withResolvers<void>();
    const go = Promise.withResolvers<void>();
    const groups: number[] = [];
    const store = wrappedStore(on.store, {
      append: async (batches, wait) => {
        groups.push(batches.length);
        begun.resolve();
        await go.promise;
        return on.store.append(batches, wait);
      },
    });
    return { app: on.app({ commitsAtOnce: 1 }, store), begun: begun.promise, go: () => go.resolve(), groups };
  };

  it('A6: is dropped before its group starts, and is answered at once', async () => {
    const { app, begun, go, groups } = held();
    const scene = on.scene(app);
    const [first, second] = [await scene.create(), await scene.create()];
    const staying = within(scene).append(first);
    await begun;
    const leaver = within(scene);
    const left = leaver.append(second);
    await expect.poll(() => app.committer.pending).toBe(2);
    const reason = new Error('the caller has left');
    leaver.leave(reason);
    expect(await left).toBe(reason);
    go();
    expect(await staying).toMatchObject({ nextStepNumber: 1n });
    await app.committer.idle();
    expect(groups).toEqual([1]);
    expect(await scene.words(second)).toEqual([]);
    await app.close();
  });

  it('A6: is answered at once while its group is running, which commits for all its members', async () => {
    const { app, begun, go } = held();
    const scene = on.scene(app);
    const trajectory = await scene.create();
    const leaver = within(scene);
    const left = leaver.append(trajectory);
    await begun;
    const reason = new Error('the caller has left');
    leaver.leave(reason);
    expect(await left).toBe(reason);
    go();
    await app.committer.idle();
    expect(await scene.words(trajectory)).toEqual(['x']);
    await app.close();
  });
});

describe('the window of a stream', () => {
  it('has room for at least one message of the largest size', () => {
    expect(LIMITS.streamWindowBytes).toBeGreaterThanOrEqual(LIMITS.messageBytes);
  });
});

/** All messages of the stream, with its error last. */
async function drain(events: AsyncGenerator<unknown>): Promise<unknown[]> {
  const said: unknown[] = [];
  try {
    for await (const event of events) said.push(event);
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    said.push(error);
  }
  return said;
}
