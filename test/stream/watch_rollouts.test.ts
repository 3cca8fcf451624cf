import { expect, it } from 'vitest';
import type { RunNews } from '../../src/stream/runs/run_news.ts';
import { WatchedRun } from '../../src/stream/runs/watch.ts';
import { describeApp } from '../service/on_app.ts';
import { RolloutScene, tokenOf } from '../store/rollout_scene.ts';
import { SILENT } from '../store/run_scene.ts';
import { wordStep } from '../support/steps.ts';
import { type Shown, watching } from './watching.ts';

type RunShown = Shown<RunNews>;

describeApp('a run that is watched with rollouts', (on) => {
  async function watched(
    use: (scene: RolloutScene, watch: (runId: string, allStages?: boolean) => Watching) => Promise<void>,
  ) {
    const app = on.app({ watchMs: 1, pollMs: 20, progressMs: 3_600_000 });
    const scene = new RolloutScene(on.store);
    try {
      await use(scene, (runId, allStages = false) => {
        const args = { runId, allStages, untilTerminal: false, rollouts: true };
        return watching(app, () => WatchedRun.open(app, scene.caller, args));
      });
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  it('M5: the snapshot has groups and rollouts of open stages, or of all on request, and is complete at its end', () =>
    watched(async (scene, watch) => {
      const { run, stage } = await scene.place();
      await scene.queue(stage, 2, { inputJson: '{"large":1}' });
      const done = await scene.stage(run, { number: 7n, status: 'RUNNING' });
      await scene.queue(done, 1);
      await scene.store.moveStage(scene.caller, done.id, 'complete', SILENT);
      for (const [allStages, counts] of [
        [false, [1, 2]],
        [true, [2, 3]],
      ] as const) {
        const watching = watch(run.id, allStages);
        const shown = await untilCaughtUp(watching);
        expect(shown.map(({ caughtUp }) => caughtUp)).toEqual([...shown.slice(1).map(() => false), true]);
        const rollouts = shown.flatMap((part) => part.rollouts);
        expect([shown.flatMap(({ groups }) => groups).length, rollouts.length]).toEqual(counts);
        expect(rollouts.every(({ inputJson }) => inputJson === '')).toBe(true);
        expect(shown[0]).toMatchObject({ run: { id: run.id }, progress: { kinds: [{ kind: 'TRAIN_STEP' }] } });
        await watching.return();
      }
    }));

  it('M5: then sends changed rollouts with their changed groups, with increasing revisions', () =>
    watched(async (scene, watch) => {
      const { run, stage } = await scene.place();
      await scene.queue(stage, 3);
      const watching = watch(run.id);
      const snapshot = await untilCaughtUp(watching);
      const before = new Map(snapshot.flatMap(({ rollouts }) => rollouts.map(({ id, revision }) => [id, revision])));
      const claim = await scene.claimOne({ stageId: stage.id });
      const { id } = claim.rollout;
      const claimed = { pending: 2n, live: 1n };
      const told = await untilBoth(watching, 'INITIALIZING', claimed);
      const changed = told.flatMap(({ rollouts }) => rollouts).findLast((rollout) => rollout.id === id);
      expect(changed?.revision).toBeGreaterThan(before.get(id)!);
      expect(told.flatMap(({ groups }) => groups).at(-1)?.statistics).toMatchObject(claimed);
      await scene.complete(claim);
      const completed = { live: 0n, completed: 1n };
      const ended = await untilBoth(watching, 'COMPLETED', completed);
      expect(ended.flatMap(({ groups }) => groups).at(-1)?.statistics).toMatchObject(completed);
      await watching.return();
    }));

  it('M5: then sends turns and reward of live rollouts as GetRollout returns them, and nothing unchanged', () =>
    watched(async (scene, watch) => {
      const { run, stage } = await scene.place();
      await scene.queue(stage, 3);
      const [claim, idle] = await scene.claims({ stageId: stage.id, count: 2 });
      const watching = watch(run.id);
      await untilCaughtUp(watching);
      const told: RunShown[] = [];
      const seen = (turns: bigint) =>
        until(watching, ({ rollouts }) => rollouts.some((rollout) => rollout.turns === turns)).then((shown) => {
          told.push(...shown);
          return shown.flatMap(({ rollouts }) => rollouts).findLast(({ id }) => id === claim!.rollout.id);
        });
      for (const turn of [1n, 2n]) {
        const steps = turn === 1n ? [wordStep(0n, 'root'), wordStep(1n, 'a', { reward: 2 })] : [wordStep(2n, 'b')];
        await scene.append(claim!.trajectory, steps);
        const { leaseEndTime: _, ...shown } = await scene.rollout(claim!.rollout.id);
        expect(await seen(turn)).toMatchObject({ ...shown, turns: turn, reward: 2 });
        await scene.heartbeat([tokenOf(claim!), tokenOf(idle!)]);
      }
      await scene.complete(claim!);
      told.push(...(await until(watching, ({ rollouts }) => rollouts.some(({ status }) => status === 'COMPLETED'))));
      const ids = told.flatMap(({ rollouts }) => rollouts.map(({ id }) => id));
      expect(
        ids.filter((id) => id !== claim!.rollout.id),
        'the other rollouts have not changed',
      ).toEqual([]);
      const signs = told.flatMap(({ rollouts }) =>
        rollouts.map(({ revision, turns, reward }) => `${revision} ${turns} ${reward}`),
      );
      expect(new Set(signs).size).toBe(signs.length);
      await watching.return();
    }));

  it('RD3: a snapshot of many rollouts is sent in parts below 1 MiB, with each rollout in it', () =>
    watched(async (scene, watch) => {
      const { run, stage } = await scene.place();
      const labels = new Map(Array.from({ length: 40 }, (_, i) => [`label ${i}`, 'x'.repeat(200)]));
      await scene.queue(stage, 300, { labels });
      const watching = watch(run.id);
      const parts = (await untilCaughtUp(watching)).map(({ rollouts }) => rollouts.length).filter((count) => count > 0);
      expect(parts.length).toBeGreaterThan(4);
      expect(parts.reduce((sum, count) => sum + count, 0)).toBe(300);
      await watching.return();
    }));
});

type Watching = AsyncGenerator<RunShown, void, undefined>;

function untilCaughtUp(watching: Watching): Promise<RunShown[]> {
  return until(watching, ({ caughtUp }) => caughtUp);
}

async function until(watching: Watching, last: (shown: RunShown) => boolean): Promise<RunShown[]> {
  const shown: RunShown[] = [];
  for (;;) {
    const { value, done } = await watching.next();
    if (done === true) throw new Error('nothing more was told');
    shown.push(value);
    if (last(value)) return shown;
  }
}

/** Groups and rollouts are read one after the other, so a poll between them can send them apart. */
function untilBoth(watching: Watching, status: string, statistics: Readonly<Record<string, bigint>>) {
  let [moved, counted] = [false, false];
  return until(watching, ({ rollouts, groups }) => {
    moved ||= rollouts.some((rollout) => rollout.status === status);
    counted ||= groups.some((group) => expect.objectContaining(statistics).asymmetricMatch(group.statistics));
    return moved && counted;
  });
}
