import { describe, expect, it } from 'vitest';
import { ALL_FENCED, explore, NOT_ITS_OWN, STALE } from './writer_exploration.ts';
import type { Omission } from './writer_model.ts';

describe('two writers, cuts, deletions and late frames, in every order', () => {
  // test/faults/writer-model.test.ts explores a step less and one failure more.
  it.each([{ steps: [2, 1] as const, failures: 2 }])(
    'W1, W2, W12, F1: an acked step is stored and belongs to its writer, and never are both writers fenced ($steps steps, $failures failures)',
    (bounds) => {
      const { states, ends, violations } = explore({ ...bounds, omit: new Set() });
      expect([...violations]).toEqual([]);
      expect(states).toBeGreaterThan(50_000);
      expect(ends).toBeGreaterThan(1_000);
    },
    180_000,
  );

  const OMISSIONS: readonly [string, readonly Omission[], string][] = [
    ['the epoch in the take-over (W1)', ['take_over_epoch'], ALL_FENCED],
    ['the uid (B3)', ['uid'], ALL_FENCED],
    ['the uid and the replay below the end (W12)', ['uid', 'replay_below_end'], NOT_ITS_OWN],
    ['the epoch at every write (F1)', ['epoch_check'], STALE],
  ];
  it.each(OMISSIONS)('the search finds a violation without %s', (_, omit, violation) => {
    const { violations } = explore({ steps: [2, 1], failures: 2, omit: new Set(omit) }, violation);
    expect([...violations]).toContain(violation);
  });
});
