import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import {
  decideMove,
  INITIAL_STATUSES,
  type Outcome,
  STATUSES,
  type Status,
  VERBS,
} from '../../src/domain/lifecycle.ts';

/**
 * L2 and L5 as a table, written from the rules and not from the code. A status: the verb changes to it. `same`: the
 * verb has taken effect already. `result`: it has taken effect, and succeeds only with the same message and result.
 * `no`: illegal.
 */
const TABLE = `
            PENDING    INITIALIZING  RUNNING    PAUSED     COMPLETED  FAILED   CANCELLED
  start     RUNNING    RUNNING       same       no         no         no       no
  pause     no         no            PAUSED     same       no         no       no
  resume    no         no            same       RUNNING    no         no       no
  complete  no         no            COMPLETED  COMPLETED  result     no       no
  fail      FAILED     FAILED        FAILED     FAILED     no         result   no
  cancel    CANCELLED  CANCELLED     CANCELLED  CANCELLED  no         no       result
  reopen    no         no            same       no         RUNNING    RUNNING  RUNNING
`;

const [[...columns] = [], ...lines] = TABLE.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/u));
const rows = lines.map(([verb = '', ...cells]) => ({ verb, cells }));
/** A run that never started can be completed, too. */
const ofRuns = rows.map(({ verb, cells }) => ({
  verb,
  cells: verb === 'complete' ? ['COMPLETED', 'COMPLETED', ...cells.slice(2)] : cells,
}));
/** A stage is never PAUSED. */
const ofStages = rows.filter(({ verb }) => verb !== 'pause' && verb !== 'resume');
const cases = Object.entries({ run: ofRuns, stage: ofStages }).flatMap(([noun, table]) =>
  table
    .flatMap(({ verb, cells }) => cells.map((cell, i) => [noun, verb, columns[i], cell]))
    .filter(([, , status]) => noun === 'run' || status !== 'PAUSED'),
) as ['run', (typeof VERBS)[number], Status, string][];

const outcome = fc.record({ message: fc.string(), resultJson: fc.json() });
const other = fc.tuple(outcome, outcome).filter(([a, b]) => a.message !== b.message || a.resultJson !== b.resultJson);
const nothing: Outcome = { message: '', resultJson: '' };

describe('the table of verbs', () => {
  it('L2: has every verb and every status', () => {
    expect(rows.map(({ verb }) => verb)).toEqual([...VERBS]);
    expect(columns).toEqual([...STATUSES]);
    expect(cases).toHaveLength(7 * 7 + 5 * 6);
    expect([...INITIAL_STATUSES]).toEqual(['PENDING', 'INITIALIZING', 'RUNNING']);
  });

  it.each(cases)('L2, L5: of a %s, %s from %s is: %s', (noun, verb, status, cell) => {
    const move = (stored: Outcome, said: Outcome) => decided(noun, status, stored, verb, said);
    const refused = (reason: string) => ({ reason, metadata: { status, verb } });
    fc.assert(
      fc.property(outcome, (said) => {
        if (cell === 'no') expect(move(said, said)).toEqual(refused('ILLEGAL_TRANSITION'));
        else expect(move(said, said)).toBe(cell === 'same' || cell === 'result' ? undefined : cell);
      }),
    );
    fc.assert(
      fc.property(other, ([stored, said]) => {
        const same = cell === 'same' ? undefined : cell;
        const expected = cell === 'no' ? refused('ILLEGAL_TRANSITION') : same;
        expect(move(stored, said)).toEqual(cell === 'result' ? refused('RESULT_CONFLICT') : expected);
      }),
    );
  });
});

describe('consequences of the table', () => {
  it('L5: in any order of verbs, a repeated verb changes nothing, and only reopen leaves a terminal status', () => {
    const verbs = fc.array(fc.constantFrom(...VERBS), { maxLength: 30 });
    fc.assert(
      fc.property(fc.constantFrom(...INITIAL_STATUSES), verbs, (first, said) => {
        let status: Status = first;
        for (const verb of said) {
          const next = decided('run', status, nothing, verb, nothing);
          if (next instanceof Object) continue;
          if (['COMPLETED', 'FAILED', 'CANCELLED'].includes(status) && next !== undefined) expect(verb).toBe('reopen');
          status = next ?? status;
          expect(decided('run', status, nothing, verb, nothing)).toBeUndefined();
        }
      }),
    );
  });

  it('L5: a refusal names the call, the required statuses and the current one', () => {
    expect(() => decideMove('stage', 'PENDING', nothing, 'complete', nothing)).toThrow(
      'CompleteStage requires a stage that is RUNNING; this one is PENDING.',
    );
    expect(() => decideMove('run', 'FAILED', nothing, 'pause', nothing)).toThrow(
      'PauseRun requires a run that is RUNNING; this one is FAILED.',
    );
    expect(() => decideMove('run', 'FAILED', nothing, 'fail', { ...nothing, message: 'else' })).toThrow(
      /This run is FAILED already, with another message or result/u,
    );
  });
});

/** The resulting status, or the refusal. */
function decided(
  ...args: Parameters<typeof decideMove<'run'>>
): Status | undefined | { reason: string; metadata: object } {
  try {
    return decideMove(...args);
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    return { reason: error.reason, metadata: error.metadata };
  }
}
