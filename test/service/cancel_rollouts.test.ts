import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { isTerminal } from '../../src/domain/lifecycle.ts';
import { cancelRollouts } from '../../src/service/run/verbs.ts';
import type { RunStore } from '../../src/store/contract/run.ts';
import { RolloutScene } from '../store/rollout_scene.ts';
import { SILENT } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { describeApp } from './on_app.ts';

describeApp('rollouts that are cancelled with their run', (on) => {
  const cancelledRun = async (count: number) => {
    const scene = new RolloutScene(on.store, randomUUID());
    const { run, stage } = await scene.place();
    await scene.queue(stage, count);
    await scene.move(run, 'cancel', {}, { cancelRollouts: true });
    const open = async () =>
      (await scene.rollouts({ runId: run.id })).filter(({ status }) => !isTerminal(status)).length;
    return { scene, runId: run.id, open };
  };

  /** Resolves when maintenance has found nothing more to cancel. */
  const watched = (replaced: Partial<Pick<RunStore, 'cancelNextRollouts'>> = {}) => {
    const done = Promise.withResolvers<void>();
    const cancelMarkedRollouts = async () => {
      const more = await on.store.cancelMarkedRollouts();
      if (!more) done.resolve();
      return more;
    };
    return { store: wrappedStore(on.store, { ...replaced, cancelMarkedRollouts }), done: done.promise };
  };

  it('L2: the call is answered after the last batch, with the number of cancelled rollouts', async () => {
    const { scene, runId, open } = await cancelledRun(450);
    const { app, caller } = on.scene(undefined, scene.namespace);
    expect(await cancelRollouts(app, caller, { runId })).toBe(450n);
    expect(await open()).toBe(0);
    expect(await cancelRollouts(app, caller, { runId })).toBe(450n);
  });

  it('L2: those of a stage are cancelled alike', async () => {
    const scene = new RolloutScene(on.store, randomUUID());
    const { app, caller } = on.scene(undefined, scene.namespace);
    const { stage } = await scene.place();
    await scene.queue(stage, 3);
    await scene.store.moveStage(scene.caller, stage.id, 'cancel', SILENT, true);
    expect(await cancelRollouts(app, caller, { stageId: stage.id })).toBe(3n);
  });

  it('L2: if the call ends before the last batch, maintenance cancels the remaining ones', async () => {
    const { scene, runId, open } = await cancelledRun(450);
    let calls = 0;
    const { store, done } = watched({
      cancelNextRollouts(namespace, of) {
        calls += 1;
        if (calls === 2) throw new Error('the caller has left');
        return on.store.cancelNextRollouts(namespace, of);
      },
    });
    const app = on.app({}, store);
    try {
      const { caller } = on.scene(app, scene.namespace);
      await expect(cancelRollouts(app, caller, { runId })).rejects.toThrow('the caller has left');
      await done;
      expect(await open()).toBe(0);
    } finally {
      await app.close();
    }
  });

  it('L2: a server that shuts down stops between two batches, and the next one continues when it starts', async () => {
    const { scene, runId, open } = await cancelledRun(450);
    const { store } = watched({
      cancelNextRollouts(namespace, of) {
        app.drain.begin();
        return on.store.cancelNextRollouts(namespace, of);
      },
    });
    const app = on.app({}, store);
    const { caller } = on.scene(app, scene.namespace);
    const stopped = cancelRollouts(app, caller, { runId });
    const closed = app.close();
    expect((await refusalOf(stopped)).reason).toBe('SERVER_DRAINING');
    await closed;
    const next = watched();
    const started = on.app({ maintenanceMs: 3_600_000 }, next.store);
    try {
      await next.done;
      expect(await open()).toBe(0);
    } finally {
      await started.close();
    }
  });
});
