import { expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { makeStep, NO_PROMPT, wordStep } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import { committed, Scene } from './scene.ts';

/** A store may cache where a trajectory ends. Callers must never notice a stale cache. */
describeStore('trajectories whose end a store caches', (on) => {
  /**
   * A scene, and the same namespace through another instance if the engine supports several. The first does not see
   * what the other one does.
   */
  async function withInstances(work: (here: Scene, there: Scene) => Promise<void>): Promise<void> {
    const here = on.scene();
    const second: Store | undefined = on.engine === 'sqlite' ? undefined : await openOn(on.database);
    try {
      await work(here, new Scene(second ?? on.store, here.namespace));
    } finally {
      await second?.close();
    }
  }

  /** The trajectory ends at 3, and `here` has cached that. */
  async function remembered(here: Scene) {
    const made = await here.create();
    for (let number = 0n; number < 3n; number += 1n) await here.append(made, [wordStep(number, `${number}`)]);
    return made;
  }

  it('W2: steps that another instance appended are distinguished from a replay, a conflict and a gap', async () => {
    await withInstances(async (here, there) => {
      const made = await remembered(here);
      const elsewhere = await there.append(made, [wordStep(3n, 'theirs')]);
      const replayed = await here.append(made, [wordStep(3n, 'theirs')]);
      expect(replayed).toMatchObject({ duplicates: 1, nextStepNumber: 4n, commitTime: elsewhere.commitTime });
      await expect(here.append(made, [wordStep(3n, 'ours')])).rejects.toMatchObject({ reason: 'STEP_CONFLICT' });
      await there.append(made, [wordStep(4n, '4'), wordStep(5n, '5')]);
      expect(await here.append(made, [wordStep(6n, '6')])).toMatchObject({ duplicates: 0, nextStepNumber: 7n });
      await expect(here.append(made, [wordStep(8n, '8')])).rejects.toMatchObject({ reason: 'STEP_GAP' });
      expect(await there.words(made)).toEqual(['0', '1', '2', 'theirs', '4', '5', '6']);
    });
  });

  it('F1: an epoch that another instance granted fences at once, and the new writer can append', async () => {
    await withInstances(async (here, there) => {
      const made = await remembered(here);
      const old = await here.open(made, 'old');
      await here.append(made, [wordStep(3n, '3')], { writerEpoch: old });
      await here.append(made, [wordStep(4n, '4')], { writerEpoch: old });
      const young = await there.open(made, 'young', old);
      const late = here.append(made, [wordStep(5n, 'late')], { writerEpoch: old });
      await expect(late).rejects.toMatchObject({ reason: 'WRITER_FENCED' });
      await here.append(made, [wordStep(5n, '5')], { writerEpoch: young });
      await here.append(made, [wordStep(6n, '6')], { writerEpoch: young });
      await expect(here.append(made, [wordStep(7n, 'late')])).rejects.toMatchObject({ reason: 'WRITER_FENCED' });
      expect(await there.words(made)).toEqual(['0', '1', '2', '3', '4', '5', '6']);
    });
  });

  it('W5: a trajectory that another instance sealed or deleted accepts no step', async () => {
    await withInstances(async (here, there) => {
      const [sealed, deleted, hidden] = [await remembered(here), await remembered(here), await remembered(here)];
      await there.seal(sealed);
      await there.delete(deleted);
      await there.branch(hidden, 2n);
      await there.delete(hidden, 'KEEP_SHARED');
      const append = (made: typeof sealed) => here.append(made, [wordStep(3n, 'late')]);
      await expect(append(sealed)).rejects.toMatchObject({ reason: 'TRAJECTORY_SEALED' });
      await expect(append(deleted)).rejects.toMatchObject({ reason: 'TRAJECTORY_NOT_FOUND' });
      await expect(append(hidden)).rejects.toMatchObject({ reason: 'TRAJECTORY_NOT_FOUND' });
      expect(await there.words(sealed)).toEqual(['0', '1', '2']);
    });
  });

  it('F1, W2, W5: of a group, trajectories that another instance changed are decided from their rows, others commit', async () => {
    await withInstances(async (here, there) => {
      const made = await Promise.all(Array.from({ length: 8 }, () => remembered(here)));
      const [plain, other, replayed, conflicting, takenOver, sealed, deleted, longer] = made;
      await there.append(replayed!, [wordStep(3n, 'new')]);
      await there.append(conflicting!, [wordStep(3n, 'theirs')]);
      await there.open(takenOver!, 'other');
      await there.seal(sealed!);
      await there.delete(deleted!);
      await there.append(longer!, [wordStep(3n, 'new'), wordStep(4n, 'more')]);
      const outcomes = await here.appendAll(made.map((each) => here.batch(each, [wordStep(3n, 'new')])));
      expect(outcomes.map((each) => (each.kind === 'refused' ? each.error.reason : each.kind))).toEqual([
        ...['committed', 'committed', 'committed', 'STEP_CONFLICT', 'WRITER_FENCED', 'TRAJECTORY_SEALED'],
        ...['TRAJECTORY_NOT_FOUND', 'committed'],
      ]);
      expect(outcomes[2]).toMatchObject({ duplicates: 1, nextStepNumber: 4n });
      expect(outcomes[7]).toMatchObject({ duplicates: 1, nextStepNumber: 5n });
      for (const each of [plain!, other!, replayed!]) expect(await there.words(each)).toEqual(['0', '1', '2', 'new']);
      expect(await there.words(conflicting!)).toEqual(['0', '1', '2', 'theirs']);
      for (const each of [takenOver!, sealed!]) expect(await there.words(each)).toEqual(['0', '1', '2']);
    });
  });

  it('W7, W3: batches of cached trajectories that take several rows are stored as those of others', async () => {
    const scene = on.scene();
    const [cached, other, fresh] = [await scene.create(), await scene.create(), await scene.create()];
    const large = Array.from({ length: 5 }, (_, i) => wordStep(BigInt(i + 1), `${i}`.repeat(30_000)));
    const many = Array.from({ length: 600 }, (_, i) => wordStep(BigInt(i + 6), `${i}`));
    for (const made of [cached, other]) await scene.append(made, [wordStep(0n, '0')]);
    const batches = [
      scene.batch(cached, large),
      scene.batch(other, [wordStep(1n, '1')]),
      scene.batch(cached, many.slice(0, 300)),
      scene.batch(cached, many.slice(300)),
    ];
    const outcomes = (await scene.store.append(batches, 'never')).map(committed);
    expect(outcomes.map(({ nextStepNumber }) => nextStepNumber)).toEqual([6n, 2n, 306n, 606n]);
    expect(new Set(outcomes.map(({ commitTime }) => commitTime)).size).toBe(1);
    await scene.append(fresh, [wordStep(0n, '0'), ...large, ...many]);
    expect(await scene.words(cached)).toEqual(await scene.words(fresh));
    const [sum, ...sums] = await on.sql.rows(
      `select byte_sum, next_step_number from trajectories where id in ('${cached.id}', '${fresh.id}')`,
    );
    expect(sums).toEqual([sum]);
    expect(await scene.append(cached, [wordStep(606n, 'next')])).toMatchObject({ nextStepNumber: 607n });
  });

  it('W2: of instances that append the same number concurrently, one succeeds and the others are refused', async () => {
    await withInstances(async (here, there) => {
      const made = await remembered(here);
      await there.append(made, [wordStep(3n, '3')]);
      await here.append(made, [wordStep(4n, '4')]);
      await there.append(made, [wordStep(5n, '5')]);
      for (let number = 6n; number < 40n; number += 1n) {
        const tries = [here, there, here, there].map((instance, i) =>
          instance.append(made, [wordStep(number, `${number}/${i}`)]).then(
            () => 'appended',
            (error: { reason: string }) => error.reason,
          ),
        );
        expect((await Promise.all(tries)).sort()).toEqual([
          'STEP_CONFLICT',
          'STEP_CONFLICT',
          'STEP_CONFLICT',
          'appended',
        ]);
      }
      expect(await here.words(made)).toHaveLength(40);
    });
  });

  it('M3: stored singly or in a group, on a root or a branch, steps have the same rows and sums', async () => {
    const scene = on.scene();
    const rewards = [1.5, undefined, Number.NaN, -0, -3.25, 1e300, Number.POSITIVE_INFINITY, 2];
    const steps = rewards.map((reward, i) =>
      makeStep(BigInt(i), {
        ...(reward === undefined ? {} : { reward }),
        terminated: i % 2 === 0,
        truncated: i % 3 === 0,
        infoJson: i === 1 ? '' : '{"ü":1}',
        metadataJson: '{}',
        metrics: new Map([['loss', i === 2 ? Number.NaN : i]]),
        startTime: i === 4 ? undefined : 1_700_000_000_123_456_789n + BigInt(i),
        actions: [
          {
            type: 'a',
            name: '\u{1f333}',
            callId: '',
            content: { kind: 'data', data: new Uint8Array([0, 1, 255]), mediaType: 'x/y' },
            tokenIds: [1, -2],
            ...NO_PROMPT,
            logprobs: [0.5],
          },
        ],
      }),
    );
    const [together, alone] = [await scene.create(), await scene.create()];
    await scene.append(together, steps);
    for (const step of steps) await scene.append(alone, [step]);
    const rows = async (made: typeof alone) =>
      (await scene.steps(made)).map(({ step }) => ({ ...step, commitTime: undefined }));
    expect(await rows(alone)).toEqual(await rows(together));
    const sums = async ({ id }: typeof alone) => {
      const { rewardSum, byteSum, nextStepNumber, status } = (await scene.get(id)) as unknown as Record<
        string,
        unknown
      >;
      return { rewardSum, byteSum, nextStepNumber, status };
    };
    expect(await sums(alone)).toEqual(await sums(together));
    const times = (await scene.steps(alone)).map(({ step }) => step.commitTime);
    expect(times).toEqual([...times].sort((a, b) => (a < b ? -1 : 1)));
    const branch = await scene.branch(alone, 5n);
    for (const step of steps.slice(6)) await scene.append(branch, [step]);
    expect(await sums(branch)).toEqual(await sums(together));
  });
});
