import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, sha256, stateRef, textAction, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { committed } from './scene.ts';

describeStore('groups of appends', (on) => {
  it('W7: outcomes are in the order of the batches, and a refused batch does not affect others', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.createWith(['a'])));
    const steps = [1n, 5n, 1n, 0n, 1n, 1n].map((n) => wordStep(n, 'b'));
    const batches = made.map((each, i) => scene.batch(each, [steps[i] as (typeof steps)[number]]));
    const outcomes = await scene.appendAll(batches);
    const results = outcomes.map((each) => (each.kind === 'refused' ? each.error.reason : each.kind));
    expect(results).toEqual(['committed', 'STEP_GAP', 'committed', 'STEP_CONFLICT', 'committed', 'committed']);
    const ends = await Promise.all(made.map(async ({ id }) => Number((await scene.get(id)).nextStepNumber)));
    expect(ends).toEqual([2, 1, 2, 1, 2, 2]);
    const times = outcomes.map((each) => (each.kind === 'committed' ? each.commitTime : undefined)).filter(Boolean);
    expect(new Set(times).size).toBe(1);
  });

  it('W7: batches of one trajectory are checked in order, each against the end that the previous one left', async () => {
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

  it('W3: after a refused batch, later batches of its trajectory are refused with the same error, and earlier ones stay', async () => {
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

  it('W7: a group with many namespaces keeps them apart, including states', async () => {
    const scenes = Array.from({ length: 4 }, () => on.scene());
    const state = newState('the same bytes everywhere');
    const made = await Promise.all(scenes.map((scene) => scene.create()));
    const step = makeStep(0n, { states: [stateRef(state)] });
    const batches = scenes.map((scene, i) =>
      scene.batch(made[i] as Trajectory, [step], i === 3 ? {} : { states: [state] }),
    );
    const outcomes = await on.store.append(batches, 'never');
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'committed', 'committed', 'refused']);
    expect(outcomes[3]).toMatchObject({ error: { reason: 'STATE_NOT_FOUND' } });
  });

  it('D3: other batches cannot refer to the inline states of a refused batch', async () => {
    const scene = on.scene();
    const [one, other] = [await scene.create(), await scene.create()];
    const state = newState('only with the refused one');
    const outcomes = await scene.store.append(
      [
        scene.batch(one, [makeStep(3n, { states: [stateRef(state)] })], { states: [state] }),
        scene.batch(other, [makeStep(0n, { states: [stateRef(state)] })]),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'refused', error: { reason: 'STEP_GAP' } },
      { kind: 'refused', error: { reason: 'STATE_NOT_FOUND' } },
    ]);
    expect(await scene.store.findStates(scene.namespace, [state.digest], false)).toEqual([]);
  });

  it('D3, O1: a batch refused for an unknown state leaves the end where the previous batch put it', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const unknown = makeStep(2n, { reward: 4, states: [stateRef(newState('never put'))] });
    const outcomes = await scene.store.append(
      [
        scene.batch(made, [wordStep(0n, 'a', { reward: 1 })]),
        scene.batch(made, [wordStep(1n, 'b', { reward: 2 }), unknown], { seal: { status: 'FAILED', message: '' } }),
      ],
      'never',
    );
    expect(outcomes).toMatchObject([
      { kind: 'committed', nextStepNumber: 1n },
      { kind: 'refused', error: { reason: 'STATE_NOT_FOUND' } },
    ]);
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 1n, rewardSum: 1, status: 'RUNNING' });
    await scene.append(made, [wordStep(1n, 'b')]);
    expect(await scene.words(made)).toEqual(['a', 'b']);
  });

  it('W7: one state sent inline by many trajectories of a group is stored once', async () => {
    const scene = on.scene();
    const state = newState('shared');
    const made = await Promise.all(Array.from({ length: 10 }, () => scene.create()));
    const step = makeStep(0n, { states: [stateRef(state)] });
    const outcomes = await scene.store.append(
      made.map((each) => scene.batch(each, [step], { states: [state] })),
      'never',
    );
    expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['committed']));
    expect(await on.sql.rows(`select size from states where namespace = '${scene.namespace}'`)).toHaveLength(1);
  });

  it('W7: a group of two hundred trajectories takes one transaction', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 200 }, () => scene.create()));
    const outcomes = await scene.store.append(
      made.map((each, i) => scene.batch(each, [wordStep(0n, `${i}`), wordStep(1n, 'x')])),
      'never',
    );
    expect(new Set(outcomes.map((each) => committed(each).commitTime)).size).toBe(1);
    expect(await scene.words(made[123] as Trajectory)).toEqual(['123', 'x']);
  });

  it('W7: batches that refer to very many unknown states are refused without effect on others', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.create()));
    const content = (i: number) => ({ kind: 'state', digest: sha256(`unknown ${i}`), mediaType: '', size: 0 }) as const;
    const batches = made.map((each, b) => {
      const refers = b === 3 ? 0 : 14_000;
      const actions = Array.from({ length: refers }, (_, i) => textAction('', { content: content(b * refers + i) }));
      return scene.batch(each, [makeStep(0n, { actions })]);
    });
    const outcomes = await scene.store.append(batches, 'never');
    const results = outcomes.map((each) => (each.kind === 'refused' ? each.error.reason : each.kind));
    const unknown = 'STATE_NOT_FOUND';
    expect(results).toEqual([unknown, unknown, unknown, 'committed', unknown, unknown]);
  });

  it('an empty group writes nothing', async () => {
    expect(await on.store.append([], 'never')).toEqual([]);
    expect(await on.store.append([], 'bounded')).toEqual([]);
  });

  it('W7: groups that name the same trajectories and states in opposite orders all commit without deadlock', async () => {
    const scene = on.scene();
    const made = await Promise.all(Array.from({ length: 6 }, () => scene.create()));
    const states = Array.from({ length: 6 }, (_, i) => newState(`state ${i}`));
    for (let round = 0; round < 5; round += 1) {
      const group = (reversed: boolean) => {
        const pick = reversed ? [...states].reverse() : states;
        const refs = pick
          .map((state, i) => stateRef(state, `s${reversed ? 5 - i : i}`))
          .sort((a, b) => (a.name < b.name ? -1 : 1));
        const step = makeStep(BigInt(round), { states: refs });
        const batches = made.map((each) => scene.batch(each, [step], { states: pick }));
        return scene.store.append(reversed ? batches.reverse() : batches, 'bounded');
      };
      const outcomes = (await Promise.all([group(false), group(true), group(true), group(false)])).flat();
      expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['committed']));
      expect(outcomes.filter((each) => committed(each).duplicates === 0)).toHaveLength(6);
    }
  });
});
