import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { OpenRequest } from '../../src/domain/append.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { newState, newStep, sha256, stateRef, textAction, textObservation, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { committed, refusalOf, type Scene } from './scene.ts';

function opening(trajectory: { readonly id: string }, fields: Partial<OpenRequest> = {}): OpenRequest {
  return {
    trajectoryId: trajectory.id,
    uid: undefined,
    writerId: 'w',
    takeOverEpoch: undefined,
    expectedNextStepNumber: undefined,
    ...fields,
  };
}

describeStore('opening for append', (on) => {
  const open = (scene: Scene, trajectory: { readonly id: string }, fields: Partial<OpenRequest> = {}) =>
    scene.store.openForAppend(scene.caller, opening(trajectory, fields));

  it('W1: grants epochs 1, 2, 3, … and writes epoch and writer durably', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const first = await open(scene, made, { writerId: 'Wr🌊ter' });
    expect(first).toMatchObject({ epoch: 1n, trajectory: { id: made.id, uid: made.uid, nextStepNumber: 1n } });
    expect(first.trajectory.ref).toEqual(made.ref);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'Wr🌊ter', writerEpoch: 1n });
    expect((await open(scene, made, { writerId: 'Wr🌊ter' })).epoch).toBe(2n);
    expect((await open(scene, made, { writerId: 'other', takeOverEpoch: 2n })).epoch).toBe(3n);
    expect(await scene.get(made.id)).toMatchObject({ writerId: 'other', writerEpoch: 3n });
  });

  it('W1: a refusal moves nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await open(scene, made);
    const before = await scene.get(made.id);
    expect(await refusalOf(open(scene, made, { writerId: 'W' }))).toMatchObject({
      reason: 'WRITER_FENCED',
      metadata: { writer_id: 'w', writer_epoch: '1' },
    });
    expect((await refusalOf(open(scene, made, { writerId: 'x', takeOverEpoch: 0n }))).reason).toBe('WRITER_FENCED');
    expect((await refusalOf(open(scene, made, { expectedNextStepNumber: 2n }))).reason).toBe('UNEXPECTED_POSITION');
    expect((await refusalOf(open(scene, made, { uid: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect((await refusalOf(open(scene, { id: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    expect(await scene.get(made.id)).toEqual(before);
  });

  it('W1: of many writers that open at once, each with the epoch it saw, one is granted', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await open(scene, made, { writerId: 'first' });
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, (_, i) => open(scene, made, { writerId: `w${i}`, takeOverEpoch: 1n })),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect((await scene.get(made.id)).writerEpoch).toBe(2n);
  });

  it('W1: of many writers that open a fresh trajectory at once, one is granted', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, (_, i) => open(scene, made, { writerId: `w${i}` })),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  it('W1: a sealed trajectory may be opened; the answer tells that it is sealed', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made, 'CANCELLED');
    expect((await open(scene, made)).trajectory).toMatchObject({ status: 'CANCELLED', nextStepNumber: 1n });
  });
});

describeStore('appending', (on) => {
  it('W2: steps come back in order with epoch, time of commit and running sum', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const epoch = await scene.open(made);
    const one = await scene.append(made, [wordStep(0n, 'a', { reward: 1.5 })], { writerEpoch: epoch });
    const two = await scene.append(made, [wordStep(1n, 'b'), wordStep(2n, 'c', { reward: -1 })], {
      writerEpoch: epoch,
    });
    expect(one).toMatchObject({ nextStepNumber: 1n, duplicates: 0, status: 'RUNNING', sealTime: undefined });
    expect(two).toMatchObject({ nextStepNumber: 3n, duplicates: 0 });
    const steps = (await scene.steps(made)).map(({ step }) => step);
    expect(steps.map(({ stepNumber }) => stepNumber)).toEqual([0n, 1n, 2n]);
    expect(steps.map(({ writerEpoch }) => writerEpoch)).toEqual([epoch, epoch, epoch]);
    expect(steps.map(({ rewardSum }) => rewardSum)).toEqual([1.5, 1.5, 0.5]);
    expect(steps.map(({ commitTime }) => commitTime)).toEqual([one.commitTime, two.commitTime, two.commitTime]);
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 3n, rewardSum: 0.5, updateTime: two.commitTime });
  });

  it('R1: what is acked is read at once', async () => {
    const scene = on.scene();
    const made = await scene.create();
    for (let n = 0n; n < 20n; n += 1n) {
      await scene.append(made, [wordStep(n, `${n}`)]);
      expect((await scene.words(made)).at(-1)).toBe(`${n}`);
    }
  });

  it('W2, W6, I1: a replay is a duplicate and changes nothing, however it is cut into batches', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b', 'c']);
    const before = await scene.steps(made);
    const step = (n: number) => wordStep(BigInt(n), ['a', 'b', 'c', 'd'][n] as string);
    expect(await scene.append(made, [step(1)])).toMatchObject({ duplicates: 1, nextStepNumber: 3n });
    expect(await scene.append(made, [step(2), step(0), step(0)])).toMatchObject({ duplicates: 3, nextStepNumber: 3n });
    expect(await scene.append(made, [step(1), step(2), step(3)])).toMatchObject({ duplicates: 2, nextStepNumber: 4n });
    expect((await scene.steps(made)).slice(0, 3)).toEqual(before);
  });

  it('W2: a replay behind a new step in one batch is a duplicate too', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    expect(await scene.append(made, [wordStep(2n, 'c'), wordStep(0n, 'a')])).toMatchObject({
      duplicates: 1,
      nextStepNumber: 3n,
    });
    expect(await scene.words(made)).toEqual(['a', 'b', 'c']);
  });

  it('W2: inherited steps count as stored: the same content is a duplicate, other content a conflict', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b', 'c']);
    const child = await scene.branch(await scene.branch(root, 1n), 0n);
    await scene.appendWords(child, ['B']);
    expect(await scene.append(child, [wordStep(0n, 'a'), wordStep(1n, 'B')])).toMatchObject({ duplicates: 2 });
    const conflict = await refusalOf(scene.append(child, [wordStep(1n, 'b')]));
    expect(conflict).toMatchObject({ reason: 'STEP_CONFLICT', metadata: { step_number: '1', next_step_number: '2' } });
    expect((await refusalOf(scene.append(child, [wordStep(0n, 'A')]))).reason).toBe('STEP_CONFLICT');
    expect(await scene.words(root)).toEqual(['a', 'b', 'c']);
  });

  it('W2: refusals write nothing: conflict, gap, epoch, seal', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const epoch = await scene.open(made);
    const good = wordStep(2n, 'c');
    const state = newState('unseen');
    const refusals: [readonly ReturnType<typeof wordStep>[], bigint | undefined, string][] = [
      [[good, wordStep(1n, 'B')], epoch, 'STEP_CONFLICT'],
      [[good, wordStep(4n, 'e')], epoch, 'STEP_GAP'],
      [[good], undefined, 'WRITER_FENCED'],
      [[good], epoch - 1n, 'WRITER_FENCED'],
      [[good], epoch + 1n, 'WRITER_FENCED'],
    ];
    for (const [steps, writerEpoch, reason] of refusals) {
      const error = await refusalOf(scene.append(made, steps, { writerEpoch, states: [state] }));
      expect(error.reason).toBe(reason);
    }
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 2n });
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('W8: a unary call of another uid, of a hidden or of a deleted trajectory is NOT_FOUND', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.branch(made, 0n);
    const next = wordStep(1n, 'b');
    expect((await refusalOf(scene.append(made, [next], { uid: randomUUID() }))).reason).toBe('TRAJECTORY_NOT_FOUND');
    await scene.append(made, [next], { uid: made.uid });
    await scene.delete(made, 'KEEP_SHARED');
    expect((await refusalOf(scene.append(made, [wordStep(2n, 'c')]))).reason).toBe('TRAJECTORY_NOT_FOUND');
    await scene.delete(made, 'KEEP_SHARED').catch(() => undefined);
    const gone = await scene.createWith(['a']);
    await scene.delete(gone);
    expect((await refusalOf(scene.append(gone, [next]))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('W3: of two different steps for one number at once, one is stored and the other told so', async () => {
    const scene = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const made = await scene.create();
      const results = await Promise.allSettled(['x', 'y', 'z'].map((word) => scene.append(made, [wordStep(0n, word)])));
      const stored = results
        .map((each, i) => (each.status === 'fulfilled' ? ['x', 'y', 'z'][i] : undefined))
        .filter(Boolean);
      expect(stored).toHaveLength(1);
      for (const each of results)
        if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'STEP_CONFLICT' });
      expect(await scene.words(made)).toEqual(stored);
    }
  });

  it('W6: the same step sent twice at once is stored once and acked twice', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.all(Array.from({ length: 6 }, () => scene.append(made, [wordStep(0n, 'a')])));
    expect(results.reduce((sum, { duplicates }) => sum + duplicates, 0)).toBe(5);
    for (const { nextStepNumber } of results) expect(nextStepNumber).toBe(1n);
  });

  it('O1: positions past 2^53 are kept apart', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const end = 2n ** 53n;
    await on.sql.rows(`update trajectories set next_step_number = ${end} where namespace = '${scene.namespace}'`);
    const far = await scene.get(made.id);
    expect(far.nextStepNumber).toBe(end);
    await scene.append(far, [wordStep(end, 'x'), wordStep(end + 1n, 'y'), wordStep(end + 2n, 'z')]);
    const segments = [{ key: made.ref.key, from: 0n, to: end + 3n }];
    const range = { from: end + 1n, to: end + 3n, maxSteps: 10, maxBytes: 1e6 };
    const steps = await scene.store.readSteps(scene.namespace, made.ref.tree, segments, range, 'FULL');
    expect(steps.map(({ step }) => step.stepNumber)).toEqual([end + 1n, end + 2n]);
    const child = await scene.branch(far, end + 1n);
    expect(child).toMatchObject({ nextStepNumber: end + 2n, parent: { branchPoint: end + 1n } });
    expect((await scene.append(child, [wordStep(end + 1n, 'y')])).duplicates).toBe(1);
    expect((await refusalOf(scene.append(child, [wordStep(end + 3n, 'w')]))).metadata).toMatchObject({
      next_step_number: `${end + 2n}`,
    });
  });

  it('W11: a sum of rewards that became NaN, of both infinities, does not stop the trajectory', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const rewards = [Infinity, -Infinity, 1];
    await scene.append(
      made,
      rewards.slice(0, 2).map((reward, i) => wordStep(BigInt(i), 'r', { reward })),
    );
    await scene.append(made, [wordStep(2n, 'r', { reward: 1 })]);
    expect((await scene.steps(made)).map(({ step }) => step.rewardSum)).toEqual([Infinity, Number.NaN, Number.NaN]);
    expect((await scene.get(made.id)).rewardSum).toBeNaN();
    expect((await scene.branch(made, 2n)).rewardSum).toBeNaN();
    expect((await scene.branch(made, 0n)).rewardSum).toBe(Infinity);
  });

  it('W3: as many steps as fit into a message of 1 MiB are one batch, and can be replayed, also on a branch', async () => {
    const scene = on.scene();
    const made = await scene.create();
    // An empty step takes about seven bytes of a message: two for its place in the frame, and its number.
    const steps = Array.from({ length: 70_000 }, (_, i) => newStep(BigInt(i)));
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 0 });
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 70_000 });
    const child = await scene.branch(made, 69_998n);
    expect(await scene.append(child, steps)).toMatchObject({ nextStepNumber: 70_000n, duplicates: 69_999 });
    await scene.delete(made, 'CASCADE');
  });

  it('W3: a batch of a thousand steps is one batch', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const steps = Array.from({ length: 1000 }, (_, i) => wordStep(BigInt(i), `${i}`));
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 1000n });
    expect(new Set((await scene.steps(made)).map(({ step }) => step.commitTime)).size).toBe(1);
    expect(await scene.append(made, steps)).toMatchObject({ nextStepNumber: 1000n, duplicates: 1000 });
  });
});

describeStore('sealing', (on) => {
  const history = async (scene: Scene, trajectory: Trajectory) =>
    on.sql.rows(
      `select ordinal, old_status, new_status, message, actor from status_changes
       where namespace = '${scene.namespace}' and entity = ${trajectory.ref.key} order by ordinal`,
    );

  it('W5: a seal stands in the same transaction as the steps of its batch, with its StatusChange', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const seal = { status: 'COMPLETED', message: 'done 🌊' } as const;
    const outcome = await scene.append(made, [wordStep(1n, 'b')], { seal });
    expect(outcome).toMatchObject({ nextStepNumber: 2n, status: 'COMPLETED', statusMessage: 'done 🌊' });
    expect(outcome.sealTime).toBe(outcome.commitTime);
    expect(await scene.get(made.id)).toMatchObject({
      status: 'COMPLETED',
      statusMessage: 'done 🌊',
      sealTime: outcome.sealTime,
      nextStepNumber: 2n,
    });
    const changes = await history(scene, made);
    expect(changes.map(({ ordinal }) => Number(ordinal))).toEqual([0, 1]);
    expect(changes[1]).toMatchObject({
      old_status: 'RUNNING',
      new_status: 'COMPLETED',
      message: 'done 🌊',
      actor: 'tester',
    });
  });

  it('W5: an equal seal again is answered as before and writes nothing; another one is refused', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const first = await scene.seal(made, 'FAILED', 'why');
    const before = await scene.get(made.id);
    const again = await scene.seal(made, 'FAILED', 'why');
    expect(again).toMatchObject({ status: 'FAILED', statusMessage: 'why', sealTime: first.sealTime });
    for (const [status, message] of [
      ['FAILED', 'other'],
      ['COMPLETED', 'why'],
    ] as const)
      expect(await refusalOf(scene.seal(made, status, message))).toMatchObject({
        reason: 'TRAJECTORY_SEALED',
        metadata: { status: 'FAILED', next_step_number: '1' },
      });
    expect(await scene.get(made.id)).toEqual(before);
    expect(await history(scene, made)).toHaveLength(2);
  });

  it('L1: nothing can be appended any more, but what is stored can be replayed', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await scene.seal(made);
    expect((await refusalOf(scene.append(made, [wordStep(1n, 'b')]))).reason).toBe('TRAJECTORY_SEALED');
    expect((await refusalOf(scene.append(made, [wordStep(9n, 'x')]))).reason).toBe('TRAJECTORY_SEALED');
    expect((await refusalOf(scene.append(made, [wordStep(0n, 'A')]))).reason).toBe('STEP_CONFLICT');
    expect(await scene.append(made, [wordStep(0n, 'a')])).toMatchObject({ duplicates: 1, status: 'COMPLETED' });
  });

  it('W5: steps and seal are one: a refused step does not seal, a refused seal does not append', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const seal = { status: 'COMPLETED', message: '' } as const;
    await refusalOf(scene.append(made, [wordStep(2n, 'c')], { seal }));
    expect((await scene.get(made.id)).status).toBe('RUNNING');
    expect(await history(scene, made)).toHaveLength(1);
  });

  it('an empty trajectory can be sealed, and of many seals at once one decides', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const results = await Promise.allSettled(
      (['COMPLETED', 'FAILED', 'CANCELLED'] as const).map((status) => scene.seal(made, status)),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect(await history(scene, made)).toHaveLength(2);
    expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
  });
});

describeStore('states of steps', (on) => {
  it('W9: inline states are stored with their step, and many names may share one state', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [a, b] = [newState('a'), newState('b')];
    const states = [stateRef(a, 'agent', 'text/plain'), stateRef(b, 'env', ''), stateRef(a, 'z', 'image/png')];
    await scene.append(made, [newStep(0n, { states })], { states: [a, b] });
    const [step] = await scene.steps(made);
    expect(step?.step.states).toEqual(states);
    expect(await scene.store.findStates(scene.namespace, [b.digest, a.digest], false)).toEqual([
      { digest: b.digest, size: 1 },
      { digest: a.digest, size: 1 },
    ]);
  });

  it('W9: a state by digest must have been put before, and its size is the one of its bytes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('put before');
    const step = newStep(0n, { states: [{ ...stateRef(state), size: 0 }] });
    const error = await refusalOf(scene.append(made, [step]));
    expect(error).toMatchObject({ reason: 'STATE_NOT_FOUND', metadata: { digest: state.digest } });
    const upload = scene.store.putState(scene.namespace);
    await upload.write(state.data);
    await upload.finish(state.digest);
    await scene.append(made, [step]);
    expect((await scene.steps(made))[0]?.step.states).toEqual([stateRef(state)]);
  });

  it('FM4, S2: a state in a content must be there too, and its size is told', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const shot = newState('screenshot');
    const content = { kind: 'state', digest: shot.digest, mediaType: 'image/png', size: 0 } as const;
    const step = newStep(0n, { observations: [textObservation('', { content })] });
    expect((await refusalOf(scene.append(made, [step]))).metadata).toEqual({ digest: shot.digest });
    await scene.append(made, [step], { states: [shot] });
    expect((await scene.steps(made))[0]?.step.observations[0]?.content).toEqual({ ...content, size: shot.data.length });
  });

  it('D3: a batch whose second step refers to an unknown state stores neither step nor inline state', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('inline');
    const steps = [
      newStep(0n, { states: [stateRef(state)] }),
      newStep(1n, { states: [{ name: 'env', digest: sha256('unknown'), mediaType: '', size: 0 }] }),
    ];
    expect((await refusalOf(scene.append(made, steps, { states: [state] }))).reason).toBe('STATE_NOT_FOUND');
    expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('S1: the media type belongs to the reference: one state may be two things', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('{}');
    for (const [n, type] of ['application/json', 'text/plain'].entries())
      await scene.append(made, [newStep(BigInt(n), { states: [stateRef(state, 'env', type)] })], { states: [state] });
    expect((await scene.steps(made)).map(({ step }) => step.states[0]?.mediaType)).toEqual([
      'application/json',
      'text/plain',
    ]);
  });

  it('W9: names that differ in case only, or are odd, are different names, sorted by bytes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const names = ['ENV', 'env', 'e\'n"v', '🌊', '\uff5e', 'é', '0', 'a/b'].sort((a, b) =>
      Buffer.compare(Buffer.from(a), Buffer.from(b)),
    );
    const states = names.map((name) => stateRef(state, name));
    await scene.append(made, [newStep(0n, { states })], { states: [state] });
    expect((await scene.steps(made))[0]?.step.states.map(({ name }) => name)).toEqual(names);
  });

  it('W6: a replay of a step with states is a duplicate, with the bytes or without', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const step = newStep(0n, { states: [stateRef(state)] });
    await scene.append(made, [step], { states: [state] });
    expect((await scene.append(made, [step], { states: [state] })).duplicates).toBe(1);
    expect((await scene.append(made, [step])).duplicates).toBe(1);
  });
});

describeStore('attaching states', (on) => {
  const attach = (scene: Scene, made: Trajectory, stepNumber: bigint, text: string, fields: object = {}) => {
    const state = newState(text);
    return scene.store.attachState(scene.caller, {
      trajectoryId: made.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber,
      name: 'env',
      digest: state.digest,
      mediaType: 'text/plain',
      data: state.data,
      ...fields,
    });
  };

  it('W10: adds a state to an own step, once; the same again changes nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const state = { name: 'env', digest: sha256('one'), mediaType: 'text/plain', size: 3 };
    expect(await attach(scene, made, 1n, 'one')).toEqual({ state, duplicate: false });
    expect(await attach(scene, made, 1n, 'one')).toEqual({ state, duplicate: true });
    expect(await attach(scene, made, 1n, 'one', { data: undefined })).toEqual({ state, duplicate: true });
    expect((await scene.steps(made)).map(({ step }) => step.states)).toEqual([[], [state]]);
  });

  it('W10: another state or media type of that name is a conflict; another name is not', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await attach(scene, made, 0n, 'one');
    expect(await refusalOf(attach(scene, made, 0n, 'two'))).toMatchObject({
      reason: 'STATE_CONFLICT',
      metadata: { step_number: '0', state_name: 'env' },
    });
    expect((await refusalOf(attach(scene, made, 0n, 'one', { mediaType: '' }))).reason).toBe('STATE_CONFLICT');
    expect(await scene.store.findStates(scene.namespace, [sha256('two')], false)).toEqual([]);
    await attach(scene, made, 0n, 'two', { name: 'agent' });
    expect((await scene.steps(made))[0]?.step.states.map(({ name }) => name)).toEqual(['agent', 'env']);
  });

  it('W10: is also refused where the step came with a state of that name', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('mine');
    await scene.append(made, [newStep(0n, { states: [stateRef(state, 'env', 'text/plain')] })], { states: [state] });
    expect((await refusalOf(attach(scene, made, 0n, 'other'))).reason).toBe('STATE_CONFLICT');
    expect((await attach(scene, made, 0n, 'mine')).duplicate).toBe(true);
  });

  it('W10: refusals: unknown state, no such step, an inherited step, epoch, uid, no such trajectory', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a', 'b']);
    const made = await scene.branch(root, 0n);
    await scene.appendWords(made, ['c']);
    const reason = (call: Promise<unknown>) => refusalOf(call).then((error) => error.reason);
    expect(await reason(attach(scene, made, 1n, 'x', { data: undefined }))).toBe('STATE_NOT_FOUND');
    expect(await reason(attach(scene, made, 2n, 'x'))).toBe('STEP_NOT_FOUND');
    expect(await reason(attach(scene, made, 0n, 'x'))).toBe('STEP_NOT_FOUND');
    expect(await reason(attach(scene, made, 1n, 'x', { writerEpoch: 1n }))).toBe('WRITER_FENCED');
    expect(await reason(attach(scene, made, 1n, 'x', { uid: randomUUID() }))).toBe('TRAJECTORY_NOT_FOUND');
    expect(await reason(attach(scene, made, 1n, 'x', { trajectoryId: randomUUID() }))).toBe('TRAJECTORY_NOT_FOUND');
    await scene.open(made);
    expect(await reason(attach(scene, made, 1n, 'x'))).toBe('WRITER_FENCED');
    await attach(scene, made, 1n, 'x', { writerEpoch: 1n, uid: made.uid });
  });

  it('W10, W6: the content stays what it was: the step as it was first sent is still a duplicate', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await attach(scene, made, 0n, 'later');
    expect((await scene.append(made, [wordStep(0n, 'a')])).duplicates).toBe(1);
  });

  it('W10: sealed trajectories take it too, and branches see it', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const child = await scene.branch(made, 0n);
    await scene.seal(made);
    await attach(scene, made, 0n, 'late');
    expect((await scene.steps(child))[0]?.step.states.map(({ digest }) => digest)).toEqual([sha256('late')]);
  });

  it('W9, W10: a step that has 16 states takes no other', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    for (let i = 0; i < 16; i += 1) await attach(scene, made, 0n, `${i}`, { name: `s${i}` });
    expect((await attach(scene, made, 0n, '3', { name: 's3' })).duplicate).toBe(true);
    expect((await refusalOf(attach(scene, made, 0n, 'x', { name: 'one more' }))).reason).toBe('INVALID_REQUEST');
    expect((await scene.steps(made))[0]?.step.states).toHaveLength(16);
  });

  it('W10: of two different states at once one is attached', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const results = await Promise.allSettled(['x', 'y', 'z'].map((text) => attach(scene, made, 0n, text)));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'STATE_CONFLICT' });
    expect((await scene.steps(made))[0]?.step.states).toHaveLength(1);
  });
});

describeStore('groups', (on) => {
  it('W7: outcomes stand in the order of the batches, and a refused one is refused alone', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.createWith(['a'])));
    const steps = [1n, 5n, 1n, 0n, 1n, 1n].map((n) => wordStep(n, 'b'));
    const batches = made.map((each, i) => scene.batch(each, [steps[i] as (typeof steps)[number]]));
    const outcomes = await scene.store.append(batches, 'never');
    const told = outcomes.map((each) => (each.kind === 'refused' ? each.error.reason : each.kind));
    expect(told).toEqual(['committed', 'STEP_GAP', 'committed', 'STEP_CONFLICT', 'committed', 'committed']);
    const ends = await Promise.all(made.map(async ({ id }) => Number((await scene.get(id)).nextStepNumber)));
    expect(ends).toEqual([2, 1, 2, 1, 2, 2]);
    const times = outcomes.map((each) => (each.kind === 'committed' ? each.commitTime : undefined)).filter(Boolean);
    expect(new Set(times).size).toBe(1);
  });

  it('W7: batches of one trajectory are decided in their order, each from where the one before left it', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const other = await scene.create();
    const state = newState('s');
    const outcomes = await scene.store.append(
      [
        scene.batch(made, [wordStep(1n, 'b')]),
        scene.batch(other, [wordStep(0n, 'x')]),
        scene.batch(made, [wordStep(1n, 'b'), wordStep(2n, 'c', { states: [stateRef(state)] })], { states: [state] }),
        scene.batch(made, [wordStep(0n, 'a'), wordStep(3n, 'd', { states: [stateRef(state)] })], {
          states: [state],
          seal: { status: 'COMPLETED', message: '' },
        }),
        scene.batch(made, [], { seal: { status: 'COMPLETED', message: '' } }),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'committed', nextStepNumber: 2n, duplicates: 0, status: 'RUNNING' },
      { kind: 'committed', nextStepNumber: 1n },
      { kind: 'committed', nextStepNumber: 3n, duplicates: 1, status: 'RUNNING' },
      { kind: 'committed', nextStepNumber: 4n, duplicates: 1, status: 'COMPLETED' },
      { kind: 'committed', nextStepNumber: 4n, duplicates: 0, status: 'COMPLETED' },
    ]);
    const sealTimes = outcomes.slice(3).map((each) => committed(each).sealTime);
    expect(sealTimes[0]).toBeDefined();
    expect(sealTimes[1]).toBe(sealTimes[0]);
    expect(await scene.words(made)).toEqual(['a', 'b', 'c', 'd']);
  });

  it('W3: after a refused batch the later ones of its trajectory are refused likewise, the earlier stay', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const outcomes = await scene.store.append(
      [
        scene.batch(made, [wordStep(1n, 'b')]),
        scene.batch(made, [wordStep(0n, 'A')]),
        scene.batch(made, [wordStep(2n, 'c')]),
        scene.batch(made, [], { seal: { status: 'FAILED', message: '' } }),
      ],
      'never',
    );
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'refused', 'refused', 'refused']);
    for (const each of outcomes.slice(1)) expect(each).toMatchObject({ error: { reason: 'STEP_CONFLICT' } });
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect((await scene.get(made.id)).status).toBe('RUNNING');
  });

  it('W7: a group of many namespaces keeps them apart, states and all', async () => {
    const scenes = Array.from({ length: 4 }, () => on.scene());
    const state = newState('the same bytes everywhere');
    const made = await Promise.all(scenes.map((scene) => scene.create()));
    const step = newStep(0n, { states: [stateRef(state)] });
    const batches = scenes.map((scene, i) =>
      scene.batch(made[i] as Trajectory, [step], i === 3 ? {} : { states: [state] }),
    );
    const outcomes = await on.store.append(batches, 'never');
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'committed', 'committed', 'refused']);
    expect(outcomes[3]).toMatchObject({ error: { reason: 'STATE_NOT_FOUND' } });
  });

  it('D3: the inline states of a refused batch are not there for others to refer to', async () => {
    const scene = on.scene();
    const [one, other] = [await scene.create(), await scene.create()];
    const state = newState('only with the refused one');
    const outcomes = await scene.store.append(
      [
        scene.batch(one, [newStep(3n, { states: [stateRef(state)] })], { states: [state] }),
        scene.batch(other, [newStep(0n, { states: [stateRef(state)] })]),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'refused', error: { reason: 'STEP_GAP' } },
      { kind: 'refused', error: { reason: 'STATE_NOT_FOUND' } },
    ]);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('W7: one state sent inline by many trajectories of a group is stored once', async () => {
    const scene = on.scene();
    const state = newState('shared');
    const made = await Promise.all(Array.from({ length: 10 }, () => scene.create()));
    const step = newStep(0n, { states: [stateRef(state)] });
    const outcomes = await scene.store.append(
      made.map((each) => scene.batch(each, [step], { states: [state] })),
      'never',
    );
    expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['committed']));
    expect(await on.sql.rows(`select size from states where namespace = '${scene.namespace}'`)).toHaveLength(1);
  });

  it('W7: a group of two hundred trajectories is one transaction', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 200 }, () => scene.create()));
    const outcomes = await scene.store.append(
      made.map((each, i) => scene.batch(each, [wordStep(0n, `${i}`), wordStep(1n, 'x')])),
      'never',
    );
    expect(new Set(outcomes.map((each) => committed(each).commitTime)).size).toBe(1);
    expect(await scene.words(made[123] as Trajectory)).toEqual(['123', 'x']);
  });

  it('W7: batches that refer to very many unknown states are refused alone', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.create()));
    const content = (i: number) => ({ kind: 'state', digest: sha256(`unknown ${i}`), mediaType: '', size: 0 }) as const;
    const batches = made.map((each, b) => {
      const refers = b === 3 ? 0 : 14_000;
      const actions = Array.from({ length: refers }, (_, i) => textAction('', { content: content(b * refers + i) }));
      return scene.batch(each, [newStep(0n, { actions })]);
    });
    const outcomes = await scene.store.append(batches, 'never');
    const told = outcomes.map((each) => (each.kind === 'refused' ? each.error.reason : each.kind));
    const unknown = 'STATE_NOT_FOUND';
    expect(told).toEqual([unknown, unknown, unknown, 'committed', unknown, unknown]);
  });

  it('an empty group is nothing', async () => {
    expect(await on.store.append([], 'never')).toEqual([]);
    expect(await on.store.append([], 'bounded')).toEqual([]);
  });

  it('W7: groups that name the same trajectories and states in opposite orders all commit, without waiting for good', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.create()));
    const states = Array.from({ length: 6 }, (_, i) => newState(`state ${i}`));
    for (let round = 0; round < 5; round += 1) {
      const group = (reversed: boolean) => {
        const pick = reversed ? [...states].reverse() : states;
        const refs = pick
          .map((state, i) => stateRef(state, `s${reversed ? 5 - i : i}`))
          .sort((a, b) => (a.name < b.name ? -1 : 1));
        const step = newStep(BigInt(round), { states: refs });
        const batches = made.map((each) => scene.batch(each, [step], { states: pick }));
        return scene.store.append(reversed ? batches.reverse() : batches, 'bounded');
      };
      const outcomes = (await Promise.all([group(false), group(true), group(true), group(false)])).flat();
      expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['committed']));
      expect(outcomes.filter((each) => committed(each).duplicates === 0)).toHaveLength(6);
    }
  });
});
