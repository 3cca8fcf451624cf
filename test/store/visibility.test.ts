import { expect, it } from 'vitest';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';

/** Enough that writing takes many turns of the event loop, in which readers run. */
const STEPS = 2000;

describeStore('readers concurrent with writers', (on) => {
  it('D2, D3: see all of a batch or nothing, and nothing before its writer is answered', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('a state of every step');
    const steps = Array.from({ length: STEPS }, (_, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
    let told = false;
    const seen: { steps: bigint; rows: number; states: number; told: boolean }[] = [];
    const look = async () => {
      const { nextStepNumber, ref } = await scene.get(made.id);
      // The lineage is requested as if the steps existed, so that rows beyond the end would show.
      const lineage = [{ key: ref.key, from: 0n, to: BigInt(STEPS) }];
      const range = { from: 0n, to: BigInt(STEPS), maxSteps: STEPS, maxBytes: 1e9 };
      const rows = await on.store.readSteps(scene.namespace, ref.tree, lineage, range, 'BASIC');
      const states = await on.store.findStates(scene.namespace, [state.digest], false);
      seen.push({ steps: nextStepNumber, rows: rows.length, states: states.length, told });
    };
    await look();
    const writing = scene
      .append(made, steps, { states: [state], seal: { status: 'COMPLETED', message: '' } })
      .then(() => {
        told = true;
      });
    while (!told) {
      await look();
      // A turn for timers and sockets: reads of SQLite alone would never let the writer proceed.
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
    await writing;
    await look();
    for (const { steps: end, rows, states } of seen) {
      expect([0n, BigInt(STEPS)]).toContain(end);
      expect([0, STEPS]).toContain(rows);
      expect([0, 1]).toContain(states);
      // A later read may only show more.
      expect(rows).toBeGreaterThanOrEqual(Number(end));
    }
    expect(seen[0]).toMatchObject({ steps: 0n, rows: 0, states: 0 });
    expect(seen.at(-1)).toMatchObject({ steps: BigInt(STEPS), rows: STEPS, states: 1, told: true });
  });

  it('D2: never see what another transaction has written and not committed', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    await on.sql.rows('begin');
    await on.sql.rows(`update trajectories set name = 'uncommitted' where id = '${made.id}'`);
    expect((await scene.get(made.id)).name).toBe('');
    expect((await on.store.listTrajectories(scene.namespace, {}, { limit: 9, after: undefined }))[0]?.name).toBe('');
    await on.sql.rows('rollback');
    expect(await scene.words(made)).toEqual(['a']);
  });
});
