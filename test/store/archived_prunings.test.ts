import { expect, it } from 'vitest';
import type { ArchivePart } from '../../src/domain/archive.ts';
import { type Instant, instantFromParts } from '../../src/domain/instant.ts';
import type { NewState } from '../../src/domain/step.ts';
import { WireWriter } from '../../src/domain/step_codec/wire_writer.ts';
import { writeStoredStep } from '../../src/domain/step_codec/write.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { checkSteps } from '../../src/store/sql/upkeep/archive/imported_steps.ts';
import { ENGINES } from '../support/database.ts';
import { makeStep, newState, smallRef, stateRef, textAction, textObservation } from '../support/steps.ts';
import { archivedLines, exported, imported, onTarget } from './archived.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { putState, readWhole, refusalOf } from './scene.ts';
import { expectVerified } from './verified.ts';

const STEPS = 6;

const large = (seed: number) => newState(`${seed} `.repeat(5 * 1024));
const small = (seed: number) => newState(`small ${seed}`);
const PICTURE = large(100);

function attach(scene: RunScene, { id }: { readonly id: string }, stepNumber: number, name: string, state: NewState) {
  const { digest, data } = state;
  return scene.store.attachState(scene.caller, {
    trajectoryId: id,
    uid: undefined,
    writerEpoch: undefined,
    stepNumber: BigInt(stepNumber),
    name,
    digest,
    mediaType: 'application/octet-stream',
    data,
  });
}

/** Each step has a large state `env` and a small state `agent`. Some were pruned, and some of these restored. */
async function furnish(store: Store): Promise<{ scene: RunScene; made: Trajectory }> {
  const scene = new RunScene(store);
  const made = await scene.create();
  const states = Array.from({ length: STEPS }, (_, i) => large(i));
  await putState(store, scene.namespace, PICTURE.data);
  const content = { kind: 'state', digest: PICTURE.digest, mediaType: 'image/png', size: PICTURE.data.length } as const;
  const seen = { actions: [textAction('', { content })], observations: [textObservation('', { content })] };
  const steps = states.map((state, i) =>
    makeStep(BigInt(i), {
      states: [smallRef(small(i), 'agent'), stateRef(state)],
      reward: i,
      ...(i === 1 || i === 2 ? seen : {}),
    }),
  );
  await scene.append(made, steps, { states });
  // The pruned states of step 3 belong to step 5, too.
  await scene.append(made, [makeStep(6n, { states: [smallRef(small(3), 'agent'), stateRef(states[3]!)] })]);
  for (const [number, name, state] of [
    [0, 'later', small(40)],
    [0, 'whole', large(41)],
    [4, 'later', small(42)],
    [4, 'whole', large(43)],
  ] as const) {
    await attach(scene, made, number, name, state);
  }
  const prune = (numbers: readonly number[], names: readonly string[], mediaTypes: readonly string[] = []) =>
    store.pruneStates(
      scene.namespace,
      made.ref,
      numbers.map((number) => ({ stepNumber: BigInt(number), names, mediaTypes })),
    );
  await prune([1, 3, 5], ['env', 'agent']);
  await prune([1], [], ['image/png']);
  await prune([4], ['later', 'whole']);
  // An inline state and an attached one that were restored, of either size, and one that was pruned again.
  await attach(scene, made, 5, 'env', large(5));
  await attach(scene, made, 5, 'agent', small(5));
  await attach(scene, made, 3, 'agent', small(3));
  await prune([3], ['agent']);
  await attach(scene, made, 4, 'whole', large(43));
  return { scene, made: await scene.get(made.id) };
}

it.each([
  ['a fraction of a second', instantFromParts(1_800_000_000n, 5)],
  ['a time before 1978', instantFromParts(2n ** 28n - 1n, 0)],
])('V6: a step that was pruned at %s is refused, because its mark could not be found', (_, prunedTime) => {
  const read = (time: Instant) => {
    const [step, frame] = [new WireWriter(100), new WireWriter(100)];
    const states = [{ ...stateRef(small(0)), prunedTime: time }];
    writeStoredStep(step, { ...makeStep(0n, { states }), commitTime: 0n, writerEpoch: 1n, rewardSum: 0 });
    frame.delimited(step.take());
    return checkSteps({ kind: 'steps', trajectoryId: 't', firstStepNumber: 0n, bytes: frame.take() });
  };
  expect(() => read(prunedTime)).toThrow(/step 0 of trajectory t: the time of a pruned state/);
  expect(() => read(instantFromParts(1_800_000_000n, 0))).not.toThrow();
});

it('V6, W10: an attached state within a step is refused, because archives have it in a record', () => {
  const [step, frame] = [new WireWriter(100), new WireWriter(100)];
  const states = [{ ...stateRef(small(0)), attachTime: instantFromParts(1_800_000_000n, 0) }];
  writeStoredStep(step, { ...makeStep(0n, { states }), commitTime: 0n, writerEpoch: 1n, rewardSum: 0 });
  frame.delimited(step.take());
  const part = { kind: 'steps', trajectoryId: 't', firstStepNumber: 0n, bytes: frame.take() } as const;
  expect(() => checkSteps(part)).toThrow(/step 0 of trajectory t: attached states belong into/);
});

describeStore('archives of pruned states', (on) => {
  const otherEngine = ENGINES.at(ENGINES.indexOf(on.engine) - 1)!;
  it.each([
    [on.engine, 'as they were appended', false],
    [otherEngine, 'that were merged', true],
  ] as const)(
    'V6, S13: into %s, steps %s keep the times of pruned states, and no missing bytes are asked for',
    async (target, _, rest) => {
      const { scene, made } = await furnish(on.store);
      if (rest) await scene.store.mergeSteps([{ ref: made.ref, rest }]);
      const parts = await exported(on.store, scene.namespace);
      const before = (await scene.steps(made)).map(({ step }) => step);
      const prunedNames = before.map(({ states }) => states.flatMap((each) => (each.prunedTime ? [each.name] : [])));
      expect(prunedNames).toEqual([[], ['agent', 'env'], [], ['agent', 'env'], ['later'], [], []]);
      await onTarget(target, async (store) => {
        await imported(store, scene.namespace, parts);
        await expectVerified(store);
        expect(archivedLines(await exported(store, scene.namespace))).toEqual(archivedLines(parts));
        const there = new RunScene(store, scene.namespace);
        const copy = await there.get(made.id);
        expect((await there.steps(copy)).map(({ step }) => step)).toEqual(before);
        const lineage = await there.lineage(copy);
        for (const name of ['agent', 'env']) {
          const page = { name, from: 0n, limit: 99 };
          const found = await store.listStepStates(scene.namespace, copy.ref.tree, lineage, page);
          expect(found.map(({ stepNumber }) => Number(stepNumber))).toEqual([0, 2, 4, 5, 6]);
        }
        expect(await readWhole(store, scene.namespace, PICTURE.digest)).toEqual(Buffer.from(PICTURE.data));
        expect(await store.findStates(scene.namespace, [large(1).digest], false)).toEqual([]);
        expect(await refusalOf(attach(there, copy, 1, 'env', large(7)))).toMatchObject({ reason: 'STATE_CONFLICT' });
        expect(await attach(there, copy, 1, 'env', large(1))).toMatchObject({ duplicate: false });
        expect(await attach(there, copy, 3, 'agent', small(3))).toMatchObject({ duplicate: false });
        expect(await attach(there, copy, 4, 'later', small(42))).toMatchObject({ duplicate: false });
        expect(await attach(there, copy, 4, 'whole', large(43))).toMatchObject({ duplicate: true });
        await store.mergeSteps([{ ref: copy.ref, rest: true }]);
        await expectVerified(store);
        const left = (await there.steps(copy)).map(({ step }) => step.states.filter((each) => each.prunedTime).length);
        expect(left).toEqual([0, 1, 0, 1, 0, 0, 0]);
      });
    },
  );

  it('V6: an archive with another time of a pruned state does not match its digest', async () => {
    const { scene, made } = await furnish(on.store);
    const parts = await exported(on.store, scene.namespace);
    await scene.delete(made);
    const changes = [/("pruned_time":")\d{4}/, /("attach_time":")\d{4}/].map((pattern) => (part: ArchivePart) => {
      return part.kind === 'records' ? { ...part, text: part.text.replace(pattern, '$12001') } : part;
    });
    for (const change of changes) {
      const error = await refusalOf(imported(on.store, scene.namespace, parts.map(change)));
      expect([error.reason, error.message]).toEqual([
        'ARCHIVE_INVALID',
        expect.stringContaining('does not match its digest'),
      ]);
      expect(await scene.isThere(made.id)).toBe(false);
    }
  });

  it('V6: what cannot be the time of a pruned state is refused, and nothing of the trajectory is stored', async () => {
    const { scene, made } = await furnish(on.store);
    const parts = await exported(on.store, scene.namespace);
    await scene.delete(made);
    const texts = (pattern: RegExp, to: string) => (part: ArchivePart) =>
      part.kind === 'records' ? { ...part, text: part.text.replace(pattern, to) } : part;
    for (const change of [
      texts(/"pruned_time":"[^"]*"/, '"pruned_time":"yesterday"'),
      texts(/"pruned_time":"[^"]*"/, '"pruned_time":7'),
      texts(/"small":true/, '"small":true,"pruned_time":"2026-01-01T00:00:00.000000Z"'),
    ]) {
      const error = await refusalOf(imported(on.store, scene.namespace, parts.map(change)));
      expect(error.reason).toBe('ARCHIVE_INVALID');
      expect(await scene.isThere(made.id)).toBe(false);
    }
    await imported(on.store, scene.namespace, parts);
    await expectVerified(on.store);
  });
});
