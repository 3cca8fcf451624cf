import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { AnabranchError, trajectoryNotFound } from '../../src/domain/errors.ts';
import type { NewStep } from '../../src/domain/step.ts';
import type { AppendBatch, AppendOutcome } from '../../src/store/contract/append.ts';
import { bindStepTexts } from '../../src/store/sql/step_texts.ts';
import { packBatches, packOutcomes, unpackBatches, unpackOutcomes } from '../../src/store/sqlite/packing.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { newState, newStep, wordStep } from '../support/steps.ts';

const NO_SIZES = new Map<string, number>();

function batchOf(steps: readonly NewStep[], fields: Partial<AppendBatch> = {}): AppendBatch {
  return {
    caller: { namespace: 'default', actor: '' },
    ref: { tree: 1n, key: 2n },
    trajectoryId: randomUUID(),
    uid: undefined,
    writerEpoch: 3n,
    steps,
    states: [],
    seal: undefined,
    ...fields,
  };
}

/** What a row is made of. */
function columns(step: NewStep) {
  const { stepNumber, contentDigest, reward, terminated, truncated, infoJson, metadataJson, states } = step;
  const texts = bindStepTexts(step, NO_SIZES);
  return { stepNumber, contentDigest, reward, terminated, truncated, infoJson, metadataJson, states, texts };
}

it('W7: steps come out of their packing as the same rows, whatever is in them', () => {
  const steps = fc.array(anyStep, { maxLength: 4 });
  fc.assert(
    fc.property(steps, steps, (one, other) => {
      const batches = [one, other].map((each) => {
        const below = each.map((step) => ({ ...step, stepNumber: step.stepNumber % 2n ** 53n }));
        return batchOf(below.map((step) => newStep(step.stepNumber, step)));
      });
      const unpacked = unpackBatches(structuredClone(packBatches(batches)!));
      expect(unpacked.map((batch) => batch.steps.map(columns))).toEqual(
        batches.map((batch) => batch.steps.map(columns)),
      );
    }),
  );
});

it('W3, W5, W9: writers, seals, states and their bytes come out as they went in', () => {
  const bytes = Buffer.from('all of a larger buffer');
  const states = [newState(bytes.subarray(4, 9)), newState(new Uint8Array(0))];
  const refs = states.map(({ digest, data }, i) => ({ name: `s${i}`, digest, mediaType: 'a/b', size: data.length }));
  const seal = { status: 'COMPLETED', message: 'done' } as const;
  const batches = [
    batchOf([wordStep(0n, 'a', { states: refs })], { states }),
    batchOf([], { seal, uid: randomUUID(), writerEpoch: undefined, caller: { namespace: 'other', actor: 'ann' } }),
    batchOf([wordStep(0n, 'b')], { ref: { tree: 1n, key: 9n } }),
  ];
  const unpacked = unpackBatches(structuredClone(packBatches(batches)!));
  const frames = (list: readonly AppendBatch[]) => list.map(({ steps: _, ...frame }) => frame);
  expect(frames(unpacked).map((frame) => ({ ...frame, states: frame.states.map(({ digest }) => digest) }))).toEqual(
    frames(batches).map((frame) => ({ ...frame, states: frame.states.map(({ digest }) => digest) })),
  );
  expect(unpacked[0]!.states.map(({ data }) => Buffer.from(data).toString())).toEqual(['of a ', '']);
  expect(unpacked[0]!.steps[0]!.states).toEqual(refs);
});

it('FM4: what depends on states in the database, or has a number beyond a double, is not packed', () => {
  const content = { kind: 'state', digest: 'ab'.repeat(32), mediaType: '', size: 0 } as const;
  const step = newStep(0n, { observations: [{ type: '', callId: '', isError: false, content }] });
  expect(packBatches([batchOf([step])])).toBeUndefined();
  expect(packBatches([batchOf([wordStep(2n ** 53n, 'far')])])).toBeUndefined();
});

it('W4, W7: outcomes come back each with its own time, end, seal or refusal', () => {
  const running = (nextStepNumber: bigint, commitTime: bigint, duplicates: number): AppendOutcome => ({
    kind: 'committed',
    nextStepNumber,
    commitTime,
    duplicates,
    status: 'RUNNING',
    statusMessage: '',
    sealTime: undefined,
  });
  const refused: AppendOutcome = { kind: 'refused', error: trajectoryNotFound('gone') };
  const sealed: AppendOutcome = { ...running(3n, 70n, 0), status: 'FAILED', sealTime: 70n } as AppendOutcome;
  const outcomes = [refused, running(1n, 70n, 0), running(2n, 60n, 2), sealed, running(2n ** 52n, 70n, 1)];
  const back = unpackOutcomes(structuredClone(packOutcomes(outcomes)));
  expect(back.slice(1)).toEqual(outcomes.slice(1));
  const [first] = back;
  expect(first?.kind === 'refused' && first.error).toBeInstanceOf(AnabranchError);
  expect(first).toMatchObject({ error: { reason: 'TRAJECTORY_NOT_FOUND', message: refused.error.message } });
});
