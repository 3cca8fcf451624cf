import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { makeStep, newState, stateRef, textAction, wordStep } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import type { Scene } from './scene.ts';
import { sqliteTextsOf, textsOf } from './statement_count.ts';

describeStore('merged rows of steps', (on) => {
  const rowsOf = async ({ ref }: Trajectory) =>
    (
      await on.sql.rows(`select first_step_number, next_step_number, encoding from segments
        where tree = ${ref.tree} and trajectory = ${ref.key} order by first_step_number`)
    ).map(({ first_step_number, next_step_number, encoding }) =>
      [first_step_number, next_step_number, encoding].map(Number),
    );
  const bytesOf = async ({ ref }: Trajectory) => {
    const [row] = await on.sql.rows(
      `select sum(octet_length(body)) as bytes from segments where tree = ${ref.tree} and trajectory = ${ref.key}`,
    );
    return Number(row?.bytes);
  };
  const merge = async (store: Store, { ref }: Trajectory, rest = true) => {
    for (let left = [{ ref, rest }]; left.length > 0; ) left = await store.mergeSteps(left);
  };
  /** Appends each step in a commit of its own. */
  const appendSingly = async (scene: Scene, made: Trajectory, steps: readonly Step[]) => {
    for (const step of steps) await scene.append(made, [step]);
  };
  const words = (from: number, count: number, text = 'words') =>
    Array.from({ length: count }, (_, i) => wordStep(BigInt(from + i), `${text} ${from + i}`, { reward: from + i }));

  /** Everything that reads of the steps of a trajectory return. */
  const look = async (scene: Scene, made: Trajectory) => {
    const { store, namespace } = scene;
    const { tree } = made.ref;
    const lineage = await scene.lineage(made);
    const of = { tree, lineage };
    const page = { limit: 1000, after: undefined, maxBytes: 4e6 };
    const lists = await Promise.all(
      (['NUMBER', 'REWARD', 'TIME'] as const).map((by) =>
        store.listSteps(namespace, { of }, { by, descending: by === 'REWARD' }, page, 'FULL'),
      ),
    );
    const outlines = await store.readOutlines(namespace, tree, lineage, 0n, 1000);
    const seen = await on.sql.rows(
      `select step_number, terminated, truncated, cast(reward as text) as reward, cast(commit_time as text) as commit_time
        from steps where tree = ${tree} order by trajectory, step_number`,
    );
    const { nextStepNumber: to } = await scene.get(made.id);
    const range = { from: 0n, to, maxSteps: 1000, maxBytes: 4e6 };
    const encoded = (await store.readEncodedSteps(namespace, tree, lineage, range, 'FULL')).flatMap(decodedSteps);
    return { row: await scene.get(made.id), steps: await scene.steps(made, 'FULL', 7), encoded, lists, outlines, seen };
  };

  it('what is read of any steps is the same before and after rows are merged, twice', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('sent');
    const drawn = fc.sample(anyStep, { numRuns: 120, seed: 22 });
    const steps = [
      ...drawn.map((step, i) => makeStep(BigInt(i), { ...step, stepNumber: BigInt(i) })),
      makeStep(120n, { states: [stateRef(state)], reward: 2, terminated: true }),
    ];
    for (let at = 0, count = 1; at < steps.length; at += count, count = (count % 5) + 1) {
      await scene.append(made, steps.slice(at, at + count), { states: [state] });
    }
    const branch = await scene.branch(made, 60n);
    await appendSingly(scene, branch, words(61, 5));
    const before = [await look(scene, made), await look(scene, branch)];
    const rows = (await rowsOf(made)).length;
    await merge(scene.store, made);
    await merge(scene.store, branch);
    expect((await rowsOf(made)).length).toBeLessThan(rows / 4);
    expect(await rowsOf(branch)).toHaveLength(1);
    expect([await look(scene, made), await look(scene, branch)]).toEqual(before);
    await scene.append(made, words(121, 3));
    await merge(scene.store, made);
    expect((await look(scene, made)).steps.slice(0, 121)).toEqual(before[0]!.steps);
    expect(await scene.append(made, steps, { states: [state] })).toMatchObject({ duplicates: steps.length });
    const later = await scene.branch(made, 121n);
    expect((await scene.get(later.id)).rewardSum).toBe((await scene.steps(later)).at(-1)!.step.rewardSum);
  });

  it('commit times and epochs of steps survive, and a replay returns the time of its newest step', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const epochs: bigint[] = [];
    for (let i = 0; i < 6; i += 1) {
      if (i % 2 === 0) epochs.push(await scene.open(made, `writer ${i}`, epochs.at(-1)));
      await scene.append(made, words(i * 2, 2), { writerEpoch: epochs.at(-1) });
    }
    const before = await scene.steps(made);
    await merge(scene.store, made);
    expect(await rowsOf(made)).toHaveLength(1);
    expect(await scene.steps(made)).toEqual(before);
    const replay = await scene.append(made, words(2, 4), { writerEpoch: epochs.at(-1) });
    expect(replay).toMatchObject({ duplicates: 4, commitTime: before[5]!.step.commitTime });
  });

  it('a row is filled to 256 steps or 64 KiB, and the last row waits until the trajectory does not grow', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await appendSingly(scene, made, words(0, 300));
    await merge(scene.store, made, false);
    const merged = await rowsOf(made);
    expect(merged.slice(0, 2)).toEqual([
      [0, 256, 2],
      [256, 257, 1],
    ]);
    await merge(scene.store, made);
    expect((await rowsOf(made)).slice(1)).toEqual([[256, 300, 2]]);
    await appendSingly(scene, made, words(300, 10));
    await merge(scene.store, made);
    expect((await rowsOf(made)).slice(1)).toEqual([[256, 310, 2]]);
    expect(await scene.words(made)).toEqual(Array.from({ length: 310 }, (_, i) => `words ${i}`));
    const large = await scene.create();
    await appendSingly(scene, large, words(0, 20, 'x'.repeat(10_000)));
    await merge(scene.store, large);
    expect(await rowsOf(large)).toEqual([
      [0, 6, 2],
      [6, 12, 2],
      [12, 18, 2],
      [18, 20, 2],
    ]);
    expect(await bytesOf(large)).toBeLessThan(5000);
  });

  it('a call replaces at most 256 rows of a trajectory, and then leaves the other trajectories for the next call', async () => {
    const scene = on.scene();
    const [first, second] = [await scene.create(), await scene.create()];
    for (const made of [first, second]) await appendSingly(scene, made, words(0, 300));
    const requests = [first, second].map(({ ref }) => ({ ref, rest: true }));
    const left = await scene.store.mergeSteps(requests);
    expect(left).toEqual(requests);
    expect([(await rowsOf(first)).length, (await rowsOf(second)).length]).toEqual([1 + 44, 300]);
    for (const made of [first, second]) await merge(scene.store, made);
    expect([(await rowsOf(first)).length, (await rowsOf(second)).length]).toEqual([2, 2]);
  });

  it('bytes that do not compress stay as they are', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const noise = (n: bigint) => {
      const content = { kind: 'data', data: randomBytes(20_000), mediaType: 'image/png' } as const;
      return makeStep(n, { actions: [textAction('', { content })] });
    };
    await appendSingly(scene, made, [noise(0n), noise(1n), noise(2n)]);
    const before = await scene.steps(made);
    await merge(scene.store, made);
    expect(await rowsOf(made)).toEqual([[0, 3, 1]]);
    expect(await scene.steps(made)).toEqual(before);
  });

  it('merges of the same trajectory at the same time, also by two instances on Postgres, beside a writer, lose nothing and store nothing twice', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      const scene = on.scene();
      const made = await scene.create();
      const writing = appendSingly(scene, made, words(0, 150));
      let isWriting = true;
      const merging = [scene.store, other].map(async (store) => {
        while (isWriting) await merge(store, made);
      });
      await writing.finally(() => {
        isWriting = false;
      });
      await Promise.all(merging);
      await Promise.all([merge(scene.store, made), merge(other, made)]);
      expect(await scene.words(made)).toEqual(Array.from({ length: 150 }, (_, i) => `words ${i}`));
      const rows = await rowsOf(made);
      expect(rows.map(([from]) => from)).toEqual([0, ...rows.slice(0, -1).map(([, to]) => to)]);
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  const mergeTexts = (store: Store, made: Trajectory) => {
    const texts = on.engine === 'postgres' ? textsOf : sqliteTextsOf;
    return texts(() => merge(store, made, false));
  };
  /** Reads whole rows of steps. */
  const READS_ROWS = /^select .* from .*segments["\s]/;

  it('a merge does not read the rows that this process has appended', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const read: boolean[] = [];
    for (let at = 0; at < 300; at += 100) {
      await appendSingly(scene, made, words(at, 99));
      // A tag takes a transaction, also on Postgres.
      const tags = [{ name: 'last', stepNumber: BigInt(at + 99) }];
      await scene.append(made, words(at + 99, 1), { tags });
      read.push((await mergeTexts(scene.store, made)).some((text) => READS_ROWS.test(text)));
    }
    expect(read).toEqual([false, false, false]);
    expect((await rowsOf(made))[0]).toEqual([0, 256, 2]);
    expect(await scene.words(made)).toEqual(words(0, 300).map((_, i) => `words ${i}`));
  });

  it('a merge reads the rows again if one was changed after this process has appended it', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await appendSingly(scene, made, words(0, 300));
    await on.sql.rows(
      `update segments set state_names = '[["env",0,1]]' where tree = ${made.ref.tree} and first_step_number = 7`,
    );
    await merge(scene.store, made, false);
    expect((await rowsOf(made))[0]).toEqual([0, 256, 2]);
    const [row] = await on.sql.rows(
      `select state_names from segments where tree = ${made.ref.tree} and first_step_number = 0`,
    );
    expect(row!.state_names).toBe('[["env",7,8]]');
  });

  it('B2: a trim and a purge of merged rows leave what branches need', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await appendSingly(scene, made, words(0, 40));
    const branch = await scene.branch(made, 25n);
    await merge(scene.store, made);
    const before = await scene.steps(branch);
    await scene.delete(made, 'KEEP_SHARED');
    expect(await rowsOf(made)).toEqual([[0, 26, 1]]);
    expect(await scene.steps(branch)).toEqual(before);
    await merge(scene.store, made);
    expect(await rowsOf(made)).toEqual([[0, 26, 2]]);
    expect(await scene.steps(branch)).toEqual(before);
    await scene.delete(branch, 'CASCADE');
    expect(await rowsOf(made)).toEqual([]);
  });

  it.each(['a flipped byte', 'a lost byte', 'a wrong length'])(
    'D5: %s in a compressed row is STEP_CORRUPT; it prevents no merge of other rows and no deletion',
    async (damage) => {
      const scene = on.scene();
      const made = await scene.create();
      for (let at = 0; at < 256; at += 64) await scene.append(made, words(at, 64));
      await appendSingly(scene, made, words(256, 44));
      await merge(scene.store, made, false);
      const of = `tree = ${made.ref.tree} and first_step_number = 0`;
      const [row] = await on.sql.rows(`select body from segments where ${of}`);
      const body = Buffer.from(row!.body as Uint8Array);
      if (damage === 'a flipped byte') body[body.length >> 1]! ^= 1;
      const bytes = (damage === 'a lost byte' ? body.subarray(0, -1) : body).toString('hex');
      const literal = on.engine === 'sqlite' ? `x'${bytes}'` : `'\\x${bytes}'`;
      await on.sql.rows(
        `update segments set ${damage === 'a wrong length' ? 'body_bytes = body_bytes - 1' : `body = ${literal}`} where ${of}`,
      );
      const read = async (from: bigint) => {
        const { ref, nextStepNumber } = await scene.get(made.id);
        const range = { from, to: nextStepNumber, maxSteps: 1000, maxBytes: 1e6 };
        return scene.store.readSteps(scene.namespace, ref.tree, await scene.lineage(made), range, 'FULL');
      };
      await expect(read(0n)).rejects.toMatchObject({ reason: 'STEP_CORRUPT' });
      await merge(scene.store, made);
      expect((await rowsOf(made)).slice(1)).toEqual([[256, 300, 2]]);
      expect(await read(256n)).toHaveLength(44);
      await scene.delete(made);
      expect(await rowsOf(made)).toEqual([]);
    },
  );

  it('a trajectory that was deleted meanwhile, or is unknown, is finished', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await appendSingly(scene, made, words(0, 3));
    await scene.delete(made);
    expect(await scene.store.mergeSteps([{ ref: made.ref, rest: true }])).toEqual([]);
    expect(await rowsOf(made)).toEqual([]);
  });

  it('the sweep finds trajectories whose rows were not merged, and none twice', async () => {
    const scene = on.scene();
    const [single, grown, merged] = [await scene.create(), await scene.create(), await scene.create()];
    const large = await scene.create();
    await scene.append(single, words(0, 3));
    await scene.append(large, [wordStep(0n, 'word'.repeat(200))]);
    for (const made of [grown, merged]) await appendSingly(scene, made, words(0, 3));
    await merge(scene.store, merged);
    const here = new Set([single, grown, merged, large].map(({ ref }) => ref.key));
    const findAll = async () => {
      const found: bigint[] = [];
      let after: Trajectory['ref'] | undefined;
      do {
        const page = await scene.store.findUnmerged(after, 2, 0);
        found.push(...page.found.map(({ key }) => key));
        after = page.next;
      } while (after !== undefined);
      return found.filter((key) => here.has(key));
    };
    // A small single row stays as it is.
    expect(await findAll()).toEqual([grown.ref.key, large.ref.key]);
    await merge(scene.store, large);
    expect(await findAll()).toEqual([grown.ref.key]);
    expect(await scene.store.findUnmerged(undefined, 1000, 3600)).toMatchObject({ found: [] });
  });
});
