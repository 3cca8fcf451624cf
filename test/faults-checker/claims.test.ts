import { describe, expect, it } from 'vitest';
import { checkClaims } from '../faults/claims/check.ts';
import { Journal, stepMark } from '../faults/claims/journal.ts';
import type { StoredAttempt, StoredRollout, StoredRollouts } from '../faults/claims/stored.ts';

type Writable<T> = { -readonly [K in keyof T]: T[K] extends readonly (infer E)[] ? Writable<E>[] : T[K] };

/**
 * Two siblings without faults: the first was lost by a killed worker and done by another. Each test changes one thing.
 */
function story(): { journal: Journal; stored: Writable<StoredRollouts> } {
  const attempt = (rollout: string, number: number, worker: string, status: string): StoredAttempt => ({
    number,
    status,
    worker,
    trajectory: `${rollout} by ${worker}`,
    sealed: status,
    marks: [0, 1].map((step) => stepMark({ rollout, attempt: number }, step)),
  });
  const rollout = (id: string, number: number, attempts: StoredAttempt[], history: string): StoredRollout => ({
    id,
    group: 0,
    number,
    status: 'COMPLETED',
    attempt: attempts.length,
    attempts,
    history: history.split(' '),
    ordinals: history.split(' ').map((_, i) => i),
  });
  const first = [attempt('r1', 1, 'dead', 'FAILED'), attempt('r1', 2, 'w', 'COMPLETED')];
  const again = 'PENDING INITIALIZING PENDING INITIALIZING RUNNING COMPLETED';
  const stored: StoredRollouts = {
    rollouts: [
      rollout('r1', 0, first, again),
      rollout('r2', 1, [attempt('r2', 1, 'w', 'COMPLETED')], 'PENDING INITIALIZING RUNNING COMPLETED'),
    ],
    groups: [{ number: 0, rollouts: 2, terminalRollouts: 2, terminalTurns: 2 }],
    strays: 0,
  };
  const journal = new Journal();
  journal.add({ what: 'claimed', rollout: 'r1', attempt: 1, worker: 'dead', trajectory: 'r1 by dead' });
  for (const token of [
    { rollout: 'r1', attempt: 2 },
    { rollout: 'r2', attempt: 1 },
  ]) {
    journal.add({ what: 'claimed', ...token, worker: 'w', trajectory: `${token.rollout} by w` });
    journal.add({ what: 'completing', ...token, worker: 'w', steps: 2 });
    journal.add({ what: 'completed', ...token, worker: 'w' });
  }
  return { journal, stored: stored as Writable<StoredRollouts> };
}

function rulesBrokenBy(spoil: (records: ReturnType<typeof story>) => void): string[] {
  const records = story();
  spoil(records);
  const made = { groups: 1, groupSize: 2 };
  const violations = checkClaims(records.journal, records.stored, made, (worker) => worker === 'dead');
  return [...new Set(violations.map(({ rule }) => rule))];
}

describe('the check of claims', () => {
  it('finds nothing in a history without faults', () => {
    expect(rulesBrokenBy(() => undefined)).toEqual([]);
  });

  it.each<[string, (records: ReturnType<typeof story>) => void]>([
    ['no sibling is lost', ({ stored }) => void stored.rollouts.pop()],
    [
      'groups count',
      ({ stored }) => {
        stored.groups[0]!.terminalTurns = 3;
      },
    ],
    [
      'completed exactly once',
      ({ stored }) => {
        stored.rollouts[0]!.attempts[0]!.status = 'COMPLETED';
      },
    ],
    [
      'completed exactly once',
      ({ stored }) => {
        stored.rollouts[1]!.status = 'FAILED';
      },
    ],
    [
      'no lease is held twice at a time',
      ({ stored }) => {
        stored.rollouts[0]!.history = ['PENDING', 'INITIALIZING', 'INITIALIZING', 'COMPLETED'];
      },
    ],
    [
      'no lease is held twice at a time',
      ({ stored }) => {
        stored.rollouts[0]!.ordinals[1] = 2;
      },
    ],
    [
      'a lease is granted once',
      ({ journal }) =>
        journal.add({ what: 'claimed', rollout: 'r2', attempt: 1, worker: 'dead', trajectory: 'r2 by w' }),
    ],
    [
      'every attempt is accounted for',
      ({ stored }) => {
        stored.rollouts[1]!.attempts[0]!.worker = 'another';
      },
    ],
    [
      'every attempt is accounted for',
      ({ journal }) => journal.add({ what: 'claimed', rollout: 'r3', attempt: 1, worker: 'dead', trajectory: 't' }),
    ],
    [
      'reports match the store',
      ({ journal }) => journal.add({ what: 'completed', rollout: 'r1', attempt: 1, worker: 'dead' }),
    ],
    [
      'sealed as the attempt ended',
      ({ stored }) => {
        stored.rollouts[0]!.attempts[0]!.sealed = 'RUNNING';
      },
    ],
    [
      'no turn is cross-filed',
      ({ stored }) => {
        stored.rollouts[0]!.attempts[1]!.marks[1] = stepMark({ rollout: 'r2', attempt: 1 }, 1) as never;
      },
    ],
    ['no turn is lost', ({ stored }) => void stored.rollouts[1]!.attempts[0]!.marks.pop()],
    [
      'every trajectory belongs to an attempt',
      ({ stored }) => {
        stored.strays = 1;
      },
    ],
  ])('reports this fault: %s', (rule, spoil) => {
    expect(rulesBrokenBy(spoil)).toContain(rule);
  });

  it('detects a live worker that never reported the end of its rollout', () => {
    const silent = rulesBrokenBy(({ journal }) => {
      journal.entries.push({ what: 'claimed', rollout: 'r9', attempt: 1, worker: 'alive', trajectory: 't' });
    });
    expect(silent).toEqual(['every attempt is accounted for']);
  });
});
