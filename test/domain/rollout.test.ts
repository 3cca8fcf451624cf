import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { type Outcome, STATUSES, type Status } from '../../src/domain/lifecycle.ts';
import {
  type GroupStatistics,
  groupStatus,
  ROLLOUT_VERBS,
  type RolloutVerb,
  requeued,
  retryDelayAfter,
  rewardStatistics,
  rolloutSuccess,
  validationPassed,
  verdict,
} from '../../src/domain/rollout.ts';
import { decideRolloutMove, type RolloutHolding, requireLease } from '../../src/domain/rollout_moves.ts';

/**
 * L3 and L5 as a table, written from the rules and not from the code, for the attempt that holds the rollout (a PENDING
 * rollout has none, nor has a CANCELLED one). A status: the verb changes to it. `same`: the verb has taken effect
 * already. `result`: it has taken effect, and succeeds only with the same message and result. `no`: illegal. `lost`:
 * the attempt does not hold the rollout any more.
 */
const TABLE = `
            PENDING    INITIALIZING  RUNNING    COMPLETED  FAILED   CANCELLED
  start     lost       RUNNING       same       no         no       lost
  complete  lost       COMPLETED     COMPLETED  result     no       lost
  fail      lost       FAILED        FAILED     no         result   lost
  cancel    CANCELLED  CANCELLED     CANCELLED  no         no       result
  release   same       PENDING       PENDING    no         no       same
  retry     same       no            no         no         PENDING  PENDING
`;

const [[...columns] = [], ...lines] = TABLE.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/u));
const rows = lines.map(([verb = '', ...cells]) => ({ verb, cells }));
const cases = rows.flatMap(({ verb, cells }) => cells.map((cell, i) => [verb, columns[i], cell])) as [
  RolloutVerb,
  Status,
  string,
][];

const outcome = fc.record({ message: fc.string(), resultJson: fc.json() });
const other = fc.tuple(outcome, outcome).filter(([a, b]) => a.message !== b.message || a.resultJson !== b.resultJson);
const attempts = fc.integer({ min: 1, max: 100 });

/**
 * A rollout that reached this status: the attempt is valid until the rollout is requeued, retried or cancelled (Q2).
 */
function rolloutIn(status: Status, attempt: number): RolloutHolding {
  return { id: 'a rollout', status, attempt, hasHolder: status !== 'PENDING' && status !== 'CANCELLED', claimer: '' };
}

/** Cancel is allowed whoever holds the rollout. */
function attemptOf(verb: RolloutVerb, attempt: number): number | undefined {
  return verb === 'cancel' ? undefined : attempt;
}

describe('verbs of rollouts', () => {
  it('L3: the table has every verb, and every status except PAUSED, which rollouts never have', () => {
    expect(rows.map(({ verb }) => verb)).toEqual([...ROLLOUT_VERBS]);
    expect(columns).toEqual(STATUSES.filter((status) => status !== 'PAUSED'));
  });

  it.each(cases)('L3, L5, Q2: %s by the current attempt from %s is: %s', (verb, status, cell) => {
    const move = (attempt: number, stored: Outcome, said: Outcome) =>
      reasonOf(() => decideRolloutMove(rolloutIn(status, attempt), stored, verb, attemptOf(verb, attempt), said));
    const wanted = (equal: boolean) => {
      if (cell === 'no') return { reason: 'ILLEGAL_TRANSITION' };
      if (cell === 'lost') return { reason: 'LEASE_LOST' };
      if (cell === 'result') return equal ? undefined : { reason: 'RESULT_CONFLICT' };
      return cell === 'same' ? undefined : cell;
    };
    fc.assert(
      fc.property(attempts, other, (attempt, [stored, said]) => {
        expect(move(attempt, said, { ...said })).toEqual(wanted(true));
        expect(move(attempt, stored, said)).toEqual(wanted(false));
      }),
    );
  });

  it.each(ROLLOUT_VERBS.filter((verb) => verb !== 'cancel'))(
    'F2, Q2: %s by any other attempt is LEASE_LOST in every status, and the error names the current attempt',
    (verb) => {
      const statuses = fc.constantFrom(...(columns as Status[]));
      fc.assert(
        fc.property(statuses, attempts, attempts, outcome, (status, current, late, said) => {
          fc.pre(current !== late);
          const refused = () => decideRolloutMove(rolloutIn(status, current), said, verb, late, said);
          expect(reasonOf(refused)).toEqual({ reason: 'LEASE_LOST' });
          expect(refused).toThrow(
            expect.objectContaining({ metadata: { rollout: 'a rollout', attempt: `${current}`, status } }),
          );
        }),
      );
    },
  );

  it('Q2: a call with an attempt is valid while that attempt is current and holds the rollout; without one, always', () => {
    fc.assert(
      fc.property(attempts, attempts, fc.boolean(), (current, said, held) => {
        const rollout: RolloutHolding = {
          id: 'a rollout',
          status: 'RUNNING',
          attempt: current,
          hasHolder: held,
          claimer: '',
        };
        const fine = said === current && held;
        expect(reasonOf(() => requireLease(rollout, said))).toEqual(fine ? undefined : { reason: 'LEASE_LOST' });
        expect(reasonOf(() => requireLease(rollout, undefined))).toBeUndefined();
      }),
    );
  });

  it('Q2, Q3: a swept attempt is refused by every verb, except that a repeated release is no error', () => {
    const statuses = fc.constantFrom(...(columns as Status[]));
    fc.assert(
      fc.property(statuses, attempts, outcome, (status, attempt, said) => {
        const swept: RolloutHolding = { id: 'a rollout', status, attempt, hasHolder: false, claimer: '' };
        const move = (verb: RolloutVerb) => reasonOf(() => decideRolloutMove(swept, said, verb, attempt, said));
        for (const verb of ['start', 'complete', 'fail'] as const) expect(move(verb)).toEqual({ reason: 'LEASE_LOST' });
        expect(move('release')).toBeUndefined();
      }),
    );
  });

  it('L3, Q1: with any calls in any order, at most one attempt completes a rollout, and no older one changes it', () => {
    const said = fc.array(fc.tuple(fc.constantFrom('claim', ...ROLLOUT_VERBS), fc.nat(4)), { maxLength: 60 });
    fc.assert(
      fc.property(said, (verbs) => {
        let rollout: RolloutHolding = { id: 'a rollout', status: 'PENDING', attempt: 0, hasHolder: false, claimer: '' };
        const completed: number[] = [];
        const nothing = { message: '', resultJson: '' };
        for (const [verb, back] of verbs) {
          const before = rollout;
          if (verb === 'claim') {
            if (rollout.status === 'PENDING')
              rollout = {
                ...rollout,
                status: 'INITIALIZING',
                attempt: rollout.attempt + 1,
                hasHolder: true,
                claimer: '',
              };
            continue;
          }
          const attempt = attemptOf(verb, rollout.attempt - back);
          const to = reasonOf(() => decideRolloutMove(rollout, nothing, verb, attempt, nothing));
          if (typeof to !== 'string') continue;
          if (attempt !== undefined) expect(attempt).toBe(before.attempt);
          rollout = {
            ...rollout,
            status: to as Status,
            hasHolder: to !== 'PENDING' && to !== 'CANCELLED',
            claimer: '',
          };
          if (to === 'COMPLETED') completed.push(rollout.attempt);
        }
        expect(completed.length).toBeLessThanOrEqual(1);
        if (completed.length === 1) expect(rollout).toMatchObject({ status: 'COMPLETED', attempt: completed[0] });
      }),
    );
  });
});

describe('requeueing', () => {
  // attempt, maximum of attempts, policy of the group, whether a sibling has succeeded
  it.each([
    [1, 3, 'CONTINUE', false, 'PENDING'],
    [2, 3, 'CONTINUE', true, 'PENDING'],
    [3, 3, 'CONTINUE', false, 'FAILED'],
    [3, 3, 'CONTINUE', true, 'FAILED'],
    // It was claimed before the limit was lowered.
    [4, 3, 'CONTINUE', false, 'FAILED'],
    [1, 1, 'CONTINUE', false, 'FAILED'],
    [1, 3, 'CANCEL_PENDING', false, 'PENDING'],
    [3, 3, 'CANCEL_PENDING', false, 'FAILED'],
    [1, 3, 'CANCEL_PENDING', true, 'CANCELLED'],
    [3, 3, 'CANCEL_PENDING', true, 'CANCELLED'],
  ] as const)('Q3: attempt %i of %i, %s, a sibling has succeeded: %s: %s', (attempt, most, policy, succeeded, to) => {
    expect(requeued(attempt, most, policy, succeeded)).toBe(to);
  });
});

describe('the status of a group', () => {
  it('L4: PENDING until one sibling has started, RUNNING until all have ended, then COMPLETED, FAILED or CANCELLED, in this order', () => {
    const sibling = fc
      .record({ status: fc.constantFrom(...(columns as Status[])), attempt: fc.integer({ min: 0, max: 2 }) })
      .map(({ status, attempt }) => ({ status, attempt: CLAIMED.includes(status) ? Math.max(1, attempt) : attempt }));
    fc.assert(
      fc.property(fc.array(sibling, { maxLength: 12 }), (siblings) => {
        expect(groupStatus(statisticsOf(siblings))).toBe(statusByRule(siblings));
      }),
    );
  });

  it('L4: a sibling that was cancelled before any attempt does not start its group', () => {
    const [waits, given] = [
      { status: 'PENDING', attempt: 0 },
      { status: 'CANCELLED', attempt: 0 },
    ] as const;
    expect(groupStatus(statisticsOf([waits, given]))).toBe('PENDING');
    expect(groupStatus(statisticsOf([given, given]))).toBe('CANCELLED');
    expect(groupStatus(statisticsOf([waits, { status: 'CANCELLED', attempt: 1 }]))).toBe('RUNNING');
  });
});

interface Sibling {
  readonly status: Status;
  /** 0: it was never claimed. */
  readonly attempt: number;
}

/** A rollout has this status only after a claim. */
const CLAIMED: readonly Status[] = ['INITIALIZING', 'RUNNING', 'COMPLETED'];

/** L4, sibling by sibling. */
function statusByRule(siblings: readonly Sibling[]): Status {
  const statuses = siblings.map(({ status }) => status);
  const ended = (['COMPLETED', 'FAILED', 'CANCELLED'] as const).find((status) => statuses.includes(status));
  const waits = statuses.some((status) => ['PENDING', 'INITIALIZING', 'RUNNING'].includes(status));
  if (!waits && ended !== undefined) return ended;
  return siblings.some(({ attempt }) => attempt > 0) ? 'RUNNING' : 'PENDING';
}

function statisticsOf(siblings: readonly Sibling[]): GroupStatistics {
  const of = (...statuses: Status[]) => BigInt(siblings.filter(({ status }) => statuses.includes(status)).length);
  return {
    pending: of('PENDING'),
    started: BigInt(siblings.filter(({ attempt }) => attempt > 0).length),
    live: of('INITIALIZING', 'RUNNING'),
    completed: of('COMPLETED'),
    failed: of('FAILED'),
    cancelled: of('CANCELLED'),
    judged: 0n,
    successes: 0n,
    rewards: rewardStatistics([]),
    best: undefined,
  };
}

describe('verdicts', () => {
  const [yes, no, none] = [true, false, undefined];
  // override, validations, own success of the result; the verdict
  it.each([
    [none, none, none, none],
    [none, none, yes, yes],
    [none, none, no, no],
    [none, yes, none, yes],
    [none, yes, no, yes],
    [none, no, yes, no],
    [yes, none, none, yes],
    [yes, no, no, yes],
    [no, yes, yes, no],
    [no, none, yes, no],
  ])('M3: with override %s, validations %s and result %s the verdict is %s', (override, validated, result, success) => {
    const judged = { override, validationPassed: validated, result };
    expect(verdict(judged)).toBe(success);
    expect(rolloutSuccess('COMPLETED', success)).toBe(success);
    expect(rolloutSuccess('FAILED', success)).toBe(false);
  });

  it('M3: validations pass if all that are not advisory pass; without any of these they decide nothing', () => {
    const validations = fc.array(fc.record({ advisory: fc.boolean(), success: fc.boolean() }), { maxLength: 8 });
    fc.assert(
      fc.property(validations, (all) => {
        const failed = all.some(({ advisory, success }) => !(advisory || success));
        const decides = all.some(({ advisory }) => !advisory);
        expect(validationPassed(all)).toBe(decides ? !failed : undefined);
      }),
    );
  });
});

describe('the delay before the next attempt', () => {
  it('Q3: doubles with each counted attempt, up to 5 minutes', () => {
    const delays = [1, 2, 3, 8, 9, 10, 100].map((attempts) => retryDelayAfter(attempts, 1000));
    expect(delays).toEqual([1000, 2000, 4000, 128_000, 256_000, 300_000, 300_000]);
    expect([1, 2, 100].map((attempts) => retryDelayAfter(attempts, 0))).toEqual([0, 0, 0]);
    expect(retryDelayAfter(1, 3_600_000)).toBe(300_000);
  });
});

/** The resulting status, or the reason of the refusal. */
function reasonOf<T>(decide: () => T): T | { reason: string } {
  try {
    return decide();
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    return { reason: error.reason };
  }
}
