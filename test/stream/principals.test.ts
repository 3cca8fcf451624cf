import { expect, it } from 'vitest';
import { Principals } from '../../src/stream/principals.ts';

const LIMITS = { streamsPerPrincipal: 2, followersPerPrincipal: 1, watchersPerPrincipal: 1 };

it('MS6: a principal has so many calls at once, and others are not affected', () => {
  const principals = new Principals(LIMITS);
  const calls = [principals.enter('a'), principals.enter('a')];
  expect(() => principals.enter('a')).toThrow(
    expect.objectContaining({ reason: 'CALLER_LIMIT', metadata: { limit: 'streamsPerPrincipal', most: '2' } }),
  );
  const other = principals.enter('b');
  expect(principals.size).toBe(2);
  calls[0]!.leave();
  principals.enter('a').leave();
  calls[1]!.leave();
  other.leave();
  expect(principals.size).toBe(0);
});

it('MS6: the followers and watchers of all calls of a principal count together', () => {
  const principals = new Principals(LIMITS);
  const [one, another] = [principals.enter('a'), principals.enter('a')];
  for (const limit of ['followersPerPrincipal', 'watchersPerPrincipal'] as const) {
    const leave = one.load.enter(limit);
    expect(() => another.load.enter(limit)).toThrow(expect.objectContaining({ metadata: { limit, most: '1' } }));
    leave();
    another.load.enter(limit)();
  }
});
