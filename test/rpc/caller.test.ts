import { describe, expect, it } from 'vitest';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { callerOf, contextValues } from '../../src/rpc/caller.ts';

const NOTHING = () => undefined;

describe('the caller of an RPC', () => {
  it('is the one that the call was let in with', () => {
    expect(callerOf(contextValues(ANONYMOUS, NOTHING, NOTHING))).toBe(ANONYMOUS);
  });

  it('N1: is refused before any handler runs if its namespace is none', () => {
    const caller = { namespace: 'a/ClaimRollouts', actor: 'a' };
    expect(() => contextValues(caller, NOTHING, NOTHING)).toThrow('namespace: must have 1 to 63 characters');
  });
});
