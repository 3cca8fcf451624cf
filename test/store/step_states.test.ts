import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import {
  makeStep,
  newState,
  sha256,
  smallRef,
  stateRef,
  textAction,
  textObservation,
  wordStep,
} from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

describeStore('states of steps', (on) => {
  it('W9: inline states are stored with their step, and many names may share one state', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [a, b] = [newState('a'), newState('b')];
    const states = [stateRef(a, 'agent', 'text/plain'), stateRef(b, 'env', ''), stateRef(a, 'z', 'image/png')];
    await scene.append(made, [makeStep(0n, { states })], { states: [a, b] });
    const [step] = await scene.steps(made);
    expect(step?.step.states).toEqual(states);
    expect(await scene.store.findStates(scene.namespace, [b.digest, a.digest], false)).toEqual([
      { digest: b.digest, size: 1 },
      { digest: a.digest, size: 1 },
    ]);
  });

  it('W9: a state referred to by digest must have been uploaded, and its size is that of its bytes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('put before');
    const step = makeStep(0n, { states: [{ ...stateRef(state), size: 0 }] });
    const error = await refusalOf(scene.append(made, [step]));
    expect(error).toMatchObject({ reason: 'STATE_NOT_FOUND', metadata: { digest: state.digest } });
    const upload = scene.store.putState(scene.namespace);
    await upload.write(state.data);
    await upload.finish();
    await scene.append(made, [step]);
    expect((await scene.steps(made))[0]?.step.states).toEqual([stateRef(state)]);
  });

  it('FM4, S2: a state in a content must exist too, and its size is returned', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const shot = newState('screenshot');
    const content = { kind: 'state', digest: shot.digest, mediaType: 'image/png', size: 0 } as const;
    const step = makeStep(0n, { observations: [textObservation('', { content })] });
    expect((await refusalOf(scene.append(made, [step]))).metadata).toEqual({ digest: shot.digest });
    await scene.append(made, [step], { states: [shot] });
    expect((await scene.steps(made))[0]?.step.observations[0]?.content).toEqual({ ...content, size: shot.data.length });
  });

  const items = newState('items');
  const tensor = { kind: 'tensor', dtype: '|S5', shape: [], digest: items.digest } as const;
  it.each([
    ['the items of a tensor', { content: tensor }],
    ['token ids', { tokenIdsState: items.digest }],
    ['the token ids of a prompt', { promptTokenIdsState: items.digest }],
  ])('FM4, S2: a state that has %s must exist too', async (_, fields) => {
    const scene = on.scene();
    const made = await scene.create();
    const action = textAction('', fields);
    const step = makeStep(0n, { actions: [action] });
    expect((await refusalOf(scene.append(made, [step]))).metadata).toEqual({ digest: items.digest });
    await scene.append(made, [step], { states: [items] });
    expect((await scene.steps(made))[0]?.step.actions).toEqual([action]);
    await collectUnused(scene.store);
    expect(await scene.store.findStates(scene.namespace, [items.digest], false)).toHaveLength(1);
  });

  it('FM4: a tensor whose state has another size than its dtype and shape say is rejected, and nothing is stored', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const upload = scene.store.putState(scene.namespace);
    await upload.write(Buffer.alloc(12));
    await upload.finish();
    const stored = sha256(Buffer.alloc(12));
    const inline = newState('y'.repeat(LIMITS.contentStateBytes));
    const stepWith = (n: bigint, digest: string, shape: readonly number[]) => {
      const content = { kind: 'tensor', dtype: '<f4', shape, digest } as const;
      return makeStep(n, { observations: [textObservation('', { content })] });
    };
    for (const [digest, shape] of [
      [stored, [4]],
      [stored, []],
      [stored, [0]],
      [stored, [3, 2]],
      [inline.digest, [4095]],
    ] as const) {
      const steps = [stepWith(0n, stored, [3]), stepWith(1n, digest, shape)];
      const error = await refusalOf(scene.append(made, steps, { states: [inline] }));
      expect(error).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'tensor.state_digest' }] });
      expect(error.message).toContain(digest);
    }
    expect(await scene.steps(made)).toEqual([]);
    const right = [stepWith(0n, stored, [3]), stepWith(1n, stored, [1, 3, 1]), stepWith(2n, inline.digest, [64, 64])];
    await scene.append(made, right, { states: [inline] });
    expect((await scene.append(made, right)).duplicates).toBe(3);
  });

  it('D3: a batch whose second step refers to an unknown state stores neither step nor inline state', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('inline');
    const steps = [
      makeStep(0n, { states: [stateRef(state)] }),
      makeStep(1n, { states: [{ name: 'env', digest: sha256('unknown'), mediaType: '', size: 0 }] }),
    ];
    expect((await refusalOf(scene.append(made, steps, { states: [state] }))).reason).toBe('STATE_NOT_FOUND');
    expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('S1: the media type belongs to the reference: one state may have two media types', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('{}');
    for (const [n, type] of ['application/json', 'text/plain'].entries())
      await scene.append(made, [makeStep(BigInt(n), { states: [stateRef(state, 'env', type)] })], { states: [state] });
    expect((await scene.steps(made)).map(({ step }) => step.states[0]?.mediaType)).toEqual([
      'application/json',
      'text/plain',
    ]);
  });

  it('W9: unusual names, and names that differ only in case, are distinct and sorted by bytes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const names = ['ENV', 'env', 'e\'n"v', '🌊', '\uff5e', 'é', '0', 'a/b'].sort((a, b) =>
      Buffer.compare(Buffer.from(a), Buffer.from(b)),
    );
    const states = names.map((name) => stateRef(state, name));
    await scene.append(made, [makeStep(0n, { states })], { states: [state] });
    expect((await scene.steps(made))[0]?.step.states.map(({ name }) => name)).toEqual(names);
  });

  it('W6: a replay of a step with states is a duplicate, with or without the bytes', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('s');
    const step = makeStep(0n, { states: [stateRef(state)] });
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

  it('W10: adds a state to an own step once; a repetition changes nothing', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a', 'b']);
    const { state } = await attach(scene, made, 1n, 'one');
    expect(state).toMatchObject({ name: 'env', digest: sha256('one'), mediaType: 'text/plain', size: 3 });
    expect(await attach(scene, made, 1n, 'one')).toEqual({ state, duplicate: true });
    expect(await attach(scene, made, 1n, 'one', { data: undefined })).toEqual({ state, duplicate: true });
    expect((await scene.steps(made)).map(({ step }) => step.states)).toEqual([[], [state]]);
  });

  it('W10: a state has the time at which it was attached; one that came with its step has none', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [smallRef(newState('sent'), 'sent')] })]);
    const { state } = await attach(scene, made, 0n, 'one', { name: 'a' });
    await attach(scene, made, 0n, 'two', { name: 'b' });
    const [step] = await scene.steps(made);
    const [one, two, sent] = step!.step.states;
    expect([one?.attachTime, sent?.attachTime]).toEqual([state.attachTime, undefined]);
    expect(one!.attachTime).toBeGreaterThanOrEqual(step!.step.commitTime);
    expect(two!.attachTime).toBeGreaterThanOrEqual(one!.attachTime!);
  });

  it('W10: another state or media type under that name is a conflict; another name is not', async () => {
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

  it('W10: a name that the step was appended with is a conflict too', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('mine');
    await scene.append(made, [makeStep(0n, { states: [stateRef(state, 'env', 'text/plain')] })], { states: [state] });
    expect((await refusalOf(attach(scene, made, 0n, 'other'))).reason).toBe('STATE_CONFLICT');
    expect((await attach(scene, made, 0n, 'mine')).duplicate).toBe(true);
  });

  it('W10: refused are an unknown state, step or trajectory, an inherited step, a wrong epoch or uid', async () => {
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

  it('W10, W6: the content stays the same: the step as first sent is still a duplicate', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await attach(scene, made, 0n, 'later');
    expect((await scene.append(made, [wordStep(0n, 'a')])).duplicates).toBe(1);
  });

  it('W10: sealed trajectories accept attachments too, and branches see them', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const child = await scene.branch(made, 0n);
    await scene.seal(made);
    await attach(scene, made, 0n, 'late');
    expect((await scene.steps(child))[0]?.step.states.map(({ digest }) => digest)).toEqual([sha256('late')]);
  });

  it('W9, W10: a step with 256 states accepts no other', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const sent = Array.from({ length: 254 }, (_, i) => smallRef(newState(`${i}`), `s${100 + i}`));
    await scene.append(made, [makeStep(0n, { states: sent })]);
    for (const name of ['t0', 't1']) await attach(scene, made, 0n, name, { name });
    expect((await attach(scene, made, 0n, 't0', { name: 't0' })).duplicate).toBe(true);
    expect((await refusalOf(attach(scene, made, 0n, 'x', { name: 'one more' }))).reason).toBe('INVALID_REQUEST');
    const [step] = await scene.steps(made);
    expect(step?.step.states.map(({ name }) => name)).toEqual([...sent.map(({ name }) => name), 't0', 't1']);
  });

  it('W3, W10: a step that is almost too large accepts states only while it fits into a response', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { infoJson: `"${'x'.repeat(LIMITS.stepBytes - 20)}"` })]);
    const name = (i: number) => `${i}`.padEnd(LIMITS.stateNameBytes, '.');
    let attached = 0;
    for (; attached < 32; attached += 1) {
      const attaching = attach(scene, made, 0n, 'x', { name: name(attached), mediaType: 'm'.repeat(128) });
      const error = await attaching.then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      if (error === undefined) continue;
      expect(error).toMatchObject({ reason: 'INVALID_REQUEST' });
      break;
    }
    expect(attached).toBeGreaterThan(4);
    const [response] = await scene.store.readEncodedSteps(
      scene.namespace,
      made.ref.tree,
      [{ key: made.ref.key, from: 0n, to: 1n }],
      { from: 0n, to: 1n, maxSteps: 1, maxBytes: 1 },
      'FULL',
    );
    expect(response?.bytes.length).toBeGreaterThan(LIMITS.stepBytes);
    expect(response?.bytes.length).toBeLessThan(LIMITS.messageBytes - 512);
  });

  it('W10: of two different states attached concurrently one is accepted', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const results = await Promise.allSettled(['x', 'y', 'z'].map((text) => attach(scene, made, 0n, text)));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'STATE_CONFLICT' });
    expect((await scene.steps(made))[0]?.step.states).toHaveLength(1);
  });
});
