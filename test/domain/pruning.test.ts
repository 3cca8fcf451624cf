import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { instantFromParts } from '../../src/domain/instant.ts';
import {
  asSent,
  canFold,
  markPruned,
  mayHaveAttached,
  mayHaveMarks,
  releasedContents,
  timeOfMark,
  withAttached,
  withoutAttached,
} from '../../src/domain/pruning.ts';
import { contentStates, type Step } from '../../src/domain/step.ts';
import { WireWriter } from '../../src/domain/step_codec/wire_writer.ts';
import { writeStep } from '../../src/domain/step_codec/write.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import { anyInstant, anyStep } from '../support/arbitrary-steps.ts';
import { sha256, textAction } from '../support/steps.ts';

const digest = fc.constantFrom(sha256('a'), sha256('b'), sha256('c'));
const mediaType = fc.constantFrom('image/png', 'text/plain');
const content = fc.record({ kind: fc.constant('state' as const), digest, mediaType, size: fc.nat(5000) });
const name = fc.constantFrom('agent', 'env', 'tree');
const ref = fc.record({ name, digest, mediaType, size: fc.nat(5000) });
const refs = fc.uniqueArray(ref, { selector: (each) => each.name, maxLength: 3 });
const stepWithStates: fc.Arbitrary<Step> = fc
  .tuple(anyStep, refs, fc.array(content, { maxLength: 3 }))
  .map(([step, states, contents]) => {
    return {
      ...step,
      states,
      actions: [...step.actions, ...contents.map((each) => textAction('', { content: each }))],
    };
  });
const pruning = fc.record({
  stepNumber: fc.constant(0n),
  names: fc.subarray(['agent', 'env', 'tree']),
  mediaTypes: fc.subarray(['image/png', 'text/plain']),
});

function bytesOf(step: Step): Buffer {
  const out = new WireWriter(64);
  writeStep(out, step);
  return Buffer.from(out.take());
}

describe('the marks of pruned states', () => {
  it('S13, W6: a pruned step has the digest of the step that was sent, and its bytes once the marks are taken off', () => {
    fc.assert(
      fc.property(stepWithStates, pruning, anyInstant, (step, what, now) => {
        const pruned = markPruned(step, what, timeOfMark(now));
        expect(stepDigest(pruned)).toBe(stepDigest(step));
        expect(bytesOf(asSent(pruned)).equals(bytesOf(step))).toBe(true);
        const again = markPruned(pruned, what, timeOfMark(now) + 1_000_000_000n);
        expect(bytesOf(again).equals(bytesOf(pruned))).toBe(true);
      }),
    );
  });

  it('S13: the mark of every time is found in the bytes, and costs less than the room that a prunable step leaves', () => {
    fc.assert(
      fc.property(stepWithStates, pruning, anyInstant, (step, what, now) => {
        const pruned = markPruned(step, what, timeOfMark(now));
        const marks =
          step.states.filter((each) => what.names.includes(each.name)).length +
          step.actions.filter(
            (each) => each.content?.kind === 'state' && what.mediaTypes.includes(each.content.mediaType),
          ).length;
        if (marks > 0) expect(mayHaveMarks(bytesOf(pruned))).toBe(true);
        expect(bytesOf(pruned).length - bytesOf(step).length).toBeLessThanOrEqual(marks * 12);
      }),
    );
  });

  it('S13: a state is released when no content of the step names it any more', () => {
    fc.assert(
      fc.property(stepWithStates, pruning, (step, what) => {
        const pruned = markPruned(step, what, timeOfMark(0n));
        const released = releasedContents(step, pruned);
        expect(new Set([...released, ...contentStates(pruned)])).toEqual(new Set(contentStates(step)));
        expect(released.filter((each) => contentStates(pruned).includes(each))).toEqual([]);
      }),
    );
  });

  it('S13, W10: a state that was attached again replaces the pruned one of its name', () => {
    const state = { name: 'env', digest: sha256('a'), mediaType: '', size: 1 };
    const other = { ...state, name: 'agent' };
    const pruned = { ...state, prunedTime: 5n };
    expect(withAttached([other, pruned], [state])).toEqual([other, state]);
    expect(withAttached([other, pruned], [])).toEqual([other, pruned]);
  });

  const attachTime = fc
    .tuple(fc.bigInt({ min: 2n ** 28n, max: 2n ** 35n - 1n }), fc.nat(999_999))
    .map(([seconds, micros]) => instantFromParts(seconds, micros * 1000));

  it('W6, W10: a step is as its writer sent it without attached states, and any step that may have some is found', () => {
    fc.assert(
      fc.property(stepWithStates, attachTime, (drawn, time) => {
        const step = { ...drawn, states: withAttached(drawn.states, []) };
        const attached = { name: 'later', digest: sha256('a'), mediaType: '', size: 1, attachTime: time };
        expect(canFold(step.states, attached)).toBe(true);
        const folded = { ...step, states: withAttached(step.states, [attached]) };
        expect(mayHaveAttached(bytesOf(folded))).toBe(true);
        expect(bytesOf(asSent(folded))).toEqual(bytesOf(step));
        expect(bytesOf(withoutAttached(folded))).toEqual(bytesOf(step));
      }),
    );
  });

  it('W10: an attached state with a time that cannot be found, or in place of one that was sent, stays apart', () => {
    const sent = { name: 'env', digest: sha256('a'), mediaType: '', size: 1 };
    const attached = { ...sent, attachTime: instantFromParts(2n ** 28n, 0) };
    expect(canFold([], attached)).toBe(true);
    expect(canFold([{ ...attached, prunedTime: 5n }], attached)).toBe(true);
    expect(canFold([{ ...sent, prunedTime: 5n }], attached)).toBe(false);
    expect(canFold([], { ...sent, attachTime: instantFromParts(2n ** 28n - 1n, 0) })).toBe(false);
    expect(canFold([], { ...sent, attachTime: instantFromParts(2n ** 35n, 0) })).toBe(false);
  });
});
