import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { StoreEngine } from '../../src/store/sql/engine.ts';
import { sqlStore } from '../../src/store/sql/store.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { exported, imported } from './archived.ts';
import { RolloutScene } from './rollout_scene.ts';
import { newMain } from './run_scene.ts';
import { sqlitePath } from './sql.ts';

let database: TestDatabase;
let engine: StoreEngine;
beforeAll(async () => {
  database = await createMigratedDatabase('sqlite');
  engine = await openSqlite(sqlitePath(database), () => {});
});
afterAll(async () => {
  await engine?.close();
  await database?.drop();
});

const newScene = () => new RolloutScene(sqlStore(engine));

/** Compares the cached head of a trajectory with its row, in a transaction. Returns whether it is cached. */
function isKnown({ ref }: Pick<Trajectory, 'ref'>): Promise<boolean> {
  return engine.transactions.run(async (tx) => {
    const known = engine.known.get(ref.key);
    if (known === undefined) return false;
    const { locked, head, sums } = known;
    const { end, status, statusMessage, writerId, writerEpoch } = head;
    const { heads } = await engine.locks.heads(tx, [ref], 'never');
    expect(heads).toEqual([{ ...locked, nextStepNumber: end, status, statusMessage, writerId, writerEpoch, sums }]);
    return true;
  });
}

/** Returns what the next transaction finds that appends at once. */
async function foundNext({ ref }: Pick<Trajectory, 'ref'>) {
  let found: unknown;
  const look = () => {
    found = engine.known.get(ref.key)?.head;
    return [];
  };
  await engine.appends.toSeen(look, () => {});
  return found;
}

it('F1: the group that is queued directly behind a grant is decided by the granted epoch', async () => {
  const scene = newScene();
  const made = await scene.create();
  const old = await scene.open(made, 'old');
  await scene.append(made, [wordStep(0n, '0')], { writerEpoch: old });
  const [young, found, late] = await Promise.all([
    scene.open(made, 'young', old),
    foundNext(made),
    scene.append(made, [wordStep(1n, 'late')], { writerEpoch: old }).catch(({ reason }) => reason),
  ]);
  expect([found, late]).toEqual([expect.objectContaining({ writerEpoch: young, end: 1n }), 'WRITER_FENCED']);
  await scene.append(made, [wordStep(1n, '1')], { writerEpoch: young });
  expect(await scene.words(made)).toEqual(['0', '1']);
});

it('W2: a group that is queued directly behind another one of its trajectory continues it', async () => {
  const scene = newScene();
  const made = await scene.createWith(['0']);
  const outcomes = await Promise.all(
    ['1', '2', '3'].map((word, i) => scene.append(made, [wordStep(BigInt(i + 1), word)])),
  );
  expect(outcomes.map(({ nextStepNumber, duplicates }) => [nextStepNumber, duplicates])).toEqual([
    [2n, 0],
    [3n, 0],
    [4n, 0],
  ]);
  expect(await scene.words(made)).toEqual(['0', '1', '2', '3']);
});

/** The trajectory whose head is cached, and what changes it. */
interface Change {
  readonly made: Trajectory;
  readonly change: () => Promise<unknown>;
  readonly isKnownAfter: boolean;
}

const CHANGES: Record<string, (scene: RolloutScene) => Promise<Change>> = {
  async 'a grant'(scene) {
    const made = await scene.createWith(['0']);
    return { made, change: () => scene.open(made), isKnownAfter: true };
  },
  async 'an append with a tag'(scene) {
    const made = await scene.createWith(['0']);
    const tags = [{ name: 'best', stepNumber: 1n }];
    return { made, change: () => scene.append(made, [wordStep(1n, '1')], { tags }), isKnownAfter: true };
  },
  async 'a seal'(scene) {
    const made = await scene.createWith(['0']);
    return { made, change: () => scene.seal(made), isKnownAfter: false };
  },
  async 'the end of an attempt'(scene) {
    const { stage } = await scene.place();
    await scene.queue(stage, 1);
    const claim = await scene.claimOne();
    const made = await scene.trajectoryOf(claim);
    await scene.append(made, [wordStep(made.nextStepNumber, 'of the attempt')]);
    return { made, change: () => scene.complete(claim), isKnownAfter: false };
  },
  async 'the end of a run'(scene) {
    const { run, mainTrajectory } = await scene.make({ mainTrajectory: newMain(), status: 'RUNNING' });
    await scene.appendWords(mainTrajectory!, ['0']);
    return { made: mainTrajectory!, change: () => scene.move(run, 'complete'), isKnownAfter: false };
  },
  async 'a deletion'(scene) {
    const made = await scene.createWith(['0']);
    return { made, change: () => scene.delete(made), isKnownAfter: false };
  },
  async 'a deletion that keeps shared steps'(scene) {
    const made = await scene.createWith(['0', '1']);
    await scene.branch(made, 0n);
    return { made, change: () => scene.delete(made, 'KEEP_SHARED'), isKnownAfter: false };
  },
  async 'the deletion of a run'(scene) {
    const { run, mainTrajectory } = await scene.make({ mainTrajectory: newMain() });
    await scene.appendWords(mainTrajectory!, ['0']);
    return {
      made: mainTrajectory!,
      change: () => scene.store.deleteRun(scene.namespace, run.id, 'REFUSE'),
      isKnownAfter: false,
    };
  },
  async 'an import of what was deleted'(scene) {
    const made = await scene.createWith(['0']);
    const parts = await exported(scene.store, scene.namespace);
    const change = async () => {
      await scene.delete(made);
      await imported(scene.store, scene.namespace, parts);
    };
    return { made, change, isKnownAfter: false };
  },
  async 'another program'(scene) {
    const made = await scene.createWith(['0']);
    const change = async () => {
      const foreign = new DatabaseSync(sqlitePath(database));
      foreign.exec(`update trajectories set byte_sum = byte_sum + 1 where key = ${made.ref.key}`);
      foreign.close();
    };
    return { made, change, isKnownAfter: false };
  },
};

it.each(Object.entries(CHANGES))('no transaction finds a head that is untrue after %s', async (_, prepare) => {
  const { made, change, isKnownAfter } = await prepare(newScene());
  expect(await isKnown(made)).toBe(true);
  let isOver = false;
  const changing = change().finally(() => {
    isOver = true;
  });
  while (!isOver) {
    await isKnown(made);
    await new Promise(setImmediate); // results of threads arrive
  }
  await changing;
  expect(await isKnown(made)).toBe(isKnownAfter);
});
