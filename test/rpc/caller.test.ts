import { describe, expect, it } from 'vitest';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { callerOf, contextValues } from '../../src/rpc/caller.ts';

const NOTHING = () => undefined;

describe('the caller of an RPC', () => {
  it('is the caller that the transport passed with the call', () => {
    expect(callerOf(contextValues(ANONYMOUS, NOTHING, NOTHING))).toBe(ANONYMOUS);
  });

  it('N1: with an invalid namespace is refused before any handler runs', () => {
    const caller = { namespace: 'a/ClaimRollouts', actor: 'a' };
    expect(() => contextValues(caller, NOTHING, NOTHING)).toThrow('namespace: must have 1 to 63 characters');
  });
});
