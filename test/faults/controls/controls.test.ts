import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { reportFigures } from '../figures.ts';
import type { Rule } from '../history/check.ts';
import { killServer } from '../kill-server.ts';
import type { Fault } from './faulty-store.ts';

const FAULTY_SERVER = path.join(import.meta.dirname, 'faulty-server.ts');

/** Proofs that cannot fail prove nothing: the same run over a store with one mistake, whose rule must be found broken. */
describe('the proof by kill -9 turns red', () => {
  const mistakes: [Fault, Rule][] = [
    ['ack-before-commit', 'C1'],
    ['epoch-checked-outside', 'C4'],
    ['duplicates-not-recognised', 'C1'],
  ];

  it.each(mistakes)('over %s', async (fault, rule) => {
    const { violations, figures } = await runWith(fault);
    const rules = violations.map((violation) => violation.rule);
    await reportFigures(`control ${fault}`, { ...figures, violations: violations.length });
    expect(rules).toContain(rule);
  });

  it('over none of them: the same program without a mistake is green', async () => {
    const { violations, surprises } = await runWith('none');
    expect(violations).toEqual([]);
    expect(surprises).toEqual([]);
  });
});

function runWith(fault: Fault) {
  // More writers than usual: each mistake needs many take-overs, or many replays, to show.
  const load = { rawWriters: 2, helperWriters: 2 };
  return killServer({ engine: 'sqlite', kills: 2, main: FAULTY_SERVER, env: { FAULT: fault }, load, grants: 20 });
}
