import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { SmallStates, writeSmallStates } from '../../src/domain/step_codec/small_states.ts';
import { newState, smallRef, stateRef } from '../support/steps.ts';

const large = newState('x'.repeat(LIMITS.smallStateBytes));

describe('the stored bytes of small states', () => {
  it('golden vector: a byte for each state, and the bytes of small ones', () => {
    const states = [smallRef(newState('ab')), stateRef(large), smallRef(newState('')), smallRef(large)];
    expect(Buffer.from(writeSmallStates(states)).toString('hex')).toBe('0161620001'.concat('00'));
    expect(writeSmallStates([])).toHaveLength(0);
  });

  it('any sequence of states reads back, state by state', () => {
    const anyState = fc.oneof(
      fc.uint8Array({ maxLength: 20 }).map((data) => smallRef(newState(data))),
      fc.constant(stateRef(large)),
    );
    fc.assert(
      fc.property(fc.array(anyState), (states) => {
        const bytes = writeSmallStates(states);
        const reader = new SmallStates(bytes);
        for (const { size, data } of states) {
          const read = reader.next(size);
          expect(read && Buffer.from(read)).toEqual(data && Buffer.from(data));
        }
        expect(reader.length).toBe(bytes.length);
      }),
    );
  });

  it('bytes that are cut off are shorter than the state, so that their digest differs', () => {
    const reader = new SmallStates(writeSmallStates([smallRef(newState('abc'))]).subarray(0, 2));
    expect(reader.next(3)).toHaveLength(1);
    expect(reader.next(3)).toBeUndefined();
  });
});
