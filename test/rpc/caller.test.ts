import { describe, expect, it } from 'vitest';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { callerOf, contextValues } from '../../src/rpc/caller.ts';

describe('the caller of an RPC', () => {
  it('is the one that the call was let in with', () => {
    expect(callerOf(contextValues(ANONYMOUS, () => undefined))).toBe(ANONYMOUS);
  });

  it('N1: is refused before any handler runs if its namespace is none', () => {
    const caller = { namespace: 'a/ClaimRollouts', actor: 'a' };
    expect(() => contextValues(caller, () => undefined)).toThrow('namespace: must have 1 to 63 characters');
  });
});
