import { describe, expect, it } from 'vitest';
import { ANONYMOUS, parseNamespace } from '../../src/domain/caller.ts';
import { AnabranchError } from '../../src/domain/errors.ts';

describe('namespaces', () => {
  it.each([ANONYMOUS.namespace, 'a', '0', 'a-', 'team-7', 'a'.repeat(63)])('N1: "%s" is a valid namespace', (text) => {
    expect(parseNamespace(text)).toBe(text);
  });

  it.each(['', '-a', 'A', 'a/b', 'a b', ' a', 'a\n', 'a_b', 'a.b', 'ä', 'a\0', 'a'.repeat(64)])(
    'N1: "%s" is refused, with the value and what is expected',
    (text) => {
      let error: unknown;
      try {
        parseNamespace(text);
      } catch (thrown) {
        error = thrown;
      }
      expect(error).toBeInstanceOf(AnabranchError);
      expect(error).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'namespace' }] });
      expect((error as AnabranchError).message).toMatch(/^namespace: must have 1 to 63 characters.+, got "/su);
    },
  );
});
