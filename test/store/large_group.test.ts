import fc from 'fast-check';
import { expect, it } from 'vitest';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';

/** Large groups are written differently from small ones: by COPY on Postgres, by a thread on SQLite. */
describeStore('large groups', (on) => {
  it('W11: a large group is returned as it was stored, whatever its values', async () => {
    const scene = on.scene();
    const made = await scene.create();
    let next = 0n;
    await fc.assert(
      fc.asyncProperty(fc.array(anyStep, { minLength: 1, maxLength: 5 }), async (few) => {
        const steps = Array.from({ length: 100 }, (_, i) => few[i % few.length]!);
        const batch = steps.map((step, i) => {
          const state = newState(Buffer.from(`${next}/${i}`));
          const fields = { ...step, stepNumber: next + BigInt(i), states: [stateRef(state)] };
          return { step: makeStep(fields.stepNumber, fields), state };
        });
        const states = batch.map(({ state }) => state);
        await scene.append(
          made,
          batch.map(({ step }) => step),
          { states },
        );
        const to = next + BigInt(batch.length);
        const range = { from: next, to, maxSteps: 1000, maxBytes: 1e7 };
        const lineage = [{ key: made.ref.key, from: 0n, to }];
        const read = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
        next = to;
        for (const [i, { step }] of read.entries()) {
          const sent = batch[i]!.step;
          expect(step).toMatchObject({ reward: sent.reward, infoJson: sent.infoJson, states: sent.states });
          expect(stepDigest(step)).toBe(stepDigest(sent));
        }
        expect(read).toHaveLength(batch.length);
      }),
      { numRuns: 6 },
    );
  });

  it('D3: if one row of a large group cannot be written, nothing is, and the store continues to work', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const steps = (count: number) => Array.from({ length: count }, (_, i) => wordStep(BigInt(i), 'a'));
    const { tree, key } = made.ref;
    // An unexpected row that occupies the place of the first step.
    await on.sql.rows(`insert into segments (tree, trajectory, first_step_number, next_step_number, namespace, writer_epoch, commit_time,
      reward_sum, byte_sum, rewards, ends, metric_sums, state_names, labels, checksum, body, states)
      values (${tree}, ${key}, 0, 1, 'x', 0, '2026-11-21T12:15:00.000000Z', 0, 0, '[null]', '{}', '{}', '[]', '[]', 0, '', '')`);
    await expect(scene.append(made, steps(200))).rejects.toThrow();
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 0n });
    await on.sql.rows(`delete from segments where tree = ${tree}`);
    expect(await scene.append(made, steps(200))).toMatchObject({ nextStepNumber: 200n, duplicates: 0 });
  });
});
