import { describe, expect, it } from 'vitest';
import { dose } from '../../support/dose.ts';
import { reportFigures } from '../figures.ts';
import type { Rule } from '../history/check.ts';
import { type KillPlan, killServer } from '../kill-server.ts';
import type { Fault } from './faulty-store.ts';

const KILLS = dose(1, 2);
const MOST_TRIES = 10;
const FAULTY_SERVER = 'test/faults/controls/faulty-server.ts';

/**
 * A proof that cannot fail proves nothing: the same run over a store with one mistake must report the rule as violated.
 */
describe('the proof by kill -9 fails', () => {
  const mistakes: [Fault, Rule][] = [
    ['ack-before-commit', 'C1'],
    ['epoch-checked-outside', 'C4'],
    ['duplicates-not-recognised', 'C1'],
  ];

  it.each(mistakes)('over %s', async (fault, rule) => {
    const rules: Rule[] = [];
    // A kill may come at a moment at which the mistake does no harm.
    for (let tries = 0; !rules.includes(rule) && tries < MOST_TRIES; tries += 1) {
      const { violations, figures } = await runWith(fault);
      rules.push(...violations.map((violation) => violation.rule));
      reportFigures(`control ${fault}`, { ...figures, violations: violations.length });
    }
    expect(rules).toContain(rule);
  });

  it('over a correct store it succeeds: the same program without a mistake', async () => {
    const { violations, surprises } = await runWith('none');
    expect(violations).toEqual([]);
    expect(surprises).toEqual([]);
  });
});

/** Each mistake is run under the load that shows it; under another load it might never take effect. */
const OCCASIONS: Record<Fault, Pick<KillPlan, 'load' | 'grants' | 'kills' | 'untilReplayed' | 'wayMs'>> = {
  none: { kills: KILLS },
  'ack-before-commit': { kills: KILLS },
  // Many take-overs.
  'epoch-checked-outside': { load: { rawWriters: 2, helperWriters: 2 }, kills: KILLS, grants: 20 },
  // Nobody takes over from a helper, so after each kill every helper sends its unacked steps again; and many acks are
  // in transit.
  'duplicates-not-recognised': {
    load: { rawWriters: 0, stepsALife: [1_000_000, 1_000_000] },
    kills: KILLS,
    untilReplayed: true,
    grants: 0,
    wayMs: 40,
  },
};

function runWith(fault: Fault) {
  return killServer({ engine: 'sqlite', program: FAULTY_SERVER, env: { FAULT: fault }, ...OCCASIONS[fault] });
}
