import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { EncodedSteps, OwnedStep, StepRange, StepView } from '../../src/store/contract/step.ts';
import { NO_SUMS } from '../../src/store/sql/kit/running_sums.ts';
import { SegmentBuilder, StepEncoder } from '../../src/store/sql/log/append/segment_builder.ts';
import { PageEncoder } from '../../src/store/sql/log/read/page_encoder.ts';
import { SegmentCursor } from '../../src/store/sql/log/read/segment.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { packed } from '../support/packed_steps.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';

const STEPS = 90;
const VIEWS: readonly StepView[] = ['BASIC', 'FULL'];

describeStore('reading encoded steps', (on) => {
  it('RD1, FM7: every range decodes to the steps that are read otherwise, in parts of one owner, in both views', async () => {
    const scene = on.scene();
    const [state, attached] = [newState('sent'), newState('attached')];
    const drawn = fc.sample(anyStep, { numRuns: STEPS, seed: 14 });
    const steps = drawn.map((step, i) => makeStep(BigInt(i), { ...step, stepNumber: BigInt(i) }));
    steps[40] = makeStep(40n, { reward: 3, states: [stateRef(state)] });
    const root = await scene.create();
    await scene.append(root, steps.slice(0, 30), { states: [state] });
    await scene.append(root, steps.slice(30, 60), { states: [state] });
    const leaf = await scene.branch(root, 49n);
    await scene.append(leaf, steps.slice(50), { states: [state] });
    for (const stepNumber of [40n, 41n, 49n, 60n]) {
      const trajectoryId = stepNumber < 50n ? root.id : leaf.id;
      const step = { stepNumber, name: 'later', mediaType: 'text/plain', ...attached };
      await scene.store.attachState(scene.caller, { trajectoryId, uid: undefined, writerEpoch: undefined, ...step });
    }
    const { encoded, read } = await reading(scene, leaf.id);
    for (const view of VIEWS) {
      for (let from = 0n; from < STEPS; from += 17n) {
        for (const to of [from + 1n, from + 32n, BigInt(STEPS)]) {
          for (const maxBytes of [1, 5000, 1024 * 1024]) {
            const range = { from, to, maxSteps: 64, maxBytes };
            expect(ownedSteps(await encoded(range, view))).toEqual(await read(range, view));
          }
        }
      }
    }
    expect(await encoded({ from: BigInt(STEPS), to: 100n, maxSteps: 9, maxBytes: 1 }, 'FULL')).toEqual([]);
  });
});

it('RD3: steps with many attached states are encoded in several parts, each well below 1 MiB', () => {
  const owner = { tree: 1n, key: 1n, namespace: 'default', writerEpoch: 0n };
  const builder = new SegmentBuilder(owner, NO_SUMS, 0n);
  const encoder = new StepEncoder();
  const steps = Array.from({ length: 200 }, (_, i) => makeStep(BigInt(i)));
  for (const step of steps.map(packed)) builder.add(step, encoder.encode(step, new Map()));
  const at = new SegmentCursor(builder.row('2026-01-01T00:00:00.000000Z'));
  const page = new PageEncoder('FULL', 100);
  while (at.next()) {
    const attached = Array.from({ length: 16 }, (_, i) => stateRef(newState(`${i}`), `${i}`.repeat(100)));
    page.add({ owner: { key: 1n, id: 'a' }, at }, attached);
  }
  const parts = page.parts();
  expect(parts.length).toBeGreaterThan(1);
  for (const { bytes } of parts) expect(bytes.length).toBeLessThan(512 * 1024);
  expect(ownedSteps(parts).map(({ step }) => step.stepNumber)).toEqual(steps.map(({ stepNumber }) => stepNumber));
});

async function reading(scene: Scene, id: string) {
  const { ref } = await scene.get(id);
  const lineage = await scene.lineage({ id });
  const { store, namespace } = scene;
  return {
    encoded: (range: StepRange, view: StepView) => store.readEncodedSteps(namespace, ref.tree, lineage, range, view),
    read: (range: StepRange, view: StepView) => store.readSteps(namespace, ref.tree, lineage, range, view),
  };
}

function ownedSteps(parts: readonly EncodedSteps[]): OwnedStep[] {
  return parts.flatMap((part) => decodedSteps(part).map((step) => ({ owner: part.owner, step })));
}
