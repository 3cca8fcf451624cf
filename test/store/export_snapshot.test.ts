import { expect, it } from 'vitest';
import { archivedLines, exported, imported } from './archived.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { expectVerified } from './verified.ts';

/** More than one page of an export. */
const ROLLOUTS = 150;
const BATCH = 50;

interface Line {
  readonly record: string;
  readonly id: string;
  readonly status: string;
  readonly rollouts: string;
  readonly terminal_rollouts: string;
}

describeStore('exports of runs', (on) => {
  it('V5: the groups and rollouts of a run are of one moment, also if they change while their pages are read', async () => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    const made: string[] = [];
    for (let first = 0; first < ROLLOUTS; first += BATCH) {
      const batch = Array.from({ length: BATCH }, (_, i) => ({ number: BigInt(first + i) }));
      made.push(...(await scene.makeRollouts(stage, batch)).map(({ rolloutId }) => rolloutId));
    }
    const exportRun = async () => {
      const parts = await exported(on.store, scene.namespace, { kind: 'run', id: run.id });
      const lines = archivedLines(parts).map((line) => JSON.parse(line) as Line);
      const rollouts = lines.filter(({ record }) => record === 'rollout');
      const terminal = rollouts.filter(({ status }) => status === 'CANCELLED').length;
      expect(new Set(rollouts.map(({ id }) => id)).size).toBe(ROLLOUTS);
      expect(lines.filter(({ record }) => record === 'group')).toMatchObject([
        { rollouts: `${ROLLOUTS}`, terminal_rollouts: `${terminal}` },
      ]);
    };
    for (let first = 0; first < ROLLOUTS; first += BATCH) {
      const cancel = async () => {
        for (const id of made.slice(first, first + BATCH)) await scene.cancel(id);
      };
      await Promise.all([exportRun(), cancel()]);
    }
  });

  it('V5: what is created while an export runs is whole in the archive or not at all', async () => {
    const scene = new RolloutScene(on.store);
    await scene.place();
    const parts = [];
    for await (const part of on.store.exportArchive(scene.namespace, { kind: 'namespace' })) {
      // After the first record the runs are read, and after the catalogue the trajectories.
      if (parts.length < 3) {
        const { run, stage } = await scene.place();
        await scene.queue(stage, 2, { taskId: await scene.task(`task ${parts.length}`) });
        await scene.claims({ runId: run.id });
      }
      parts.push(part);
    }
    const last = archivedLines(parts).length;
    for (const { id } of await scene.runs()) await on.store.deleteRun(scene.namespace, id, 'CASCADE', true);
    while (await on.store.purgeDeleted(500));
    await imported(on.store, scene.namespace, parts);
    expect(last).toBeGreaterThan(5);
    await expectVerified(on.store);
  });
});
