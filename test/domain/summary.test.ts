import { readFileSync } from 'node:fs';
import path from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { rewardStatistics } from '../../src/domain/rollout.ts';
import { type SummaryCounts, summaryOf, type TaskGroups } from '../../src/domain/summary.ts';
import { momentsOf } from '../../src/store/sql/records/summary/rewards.ts';

interface Fixtures {
  readonly rates: { successes: number; trials: number; value: number; low: number; high: number }[];
  readonly chances: { trials: number; successes: number; k: number; value: number }[];
  readonly crowds: {
    /**
     * CANCEL_PENDING groups by their siblings in queue order: s succeeded, f ended without success, ? has not ended.
     */
    tasks: { groups: number; trials: number; successes: number; unfinished: number; stopping: string[] }[];
    passAt: { k: number; tasks: number; groupsExcluded: number; value?: number; low?: number; high?: number }[];
  }[];
  readonly samples: {
    rewards: number[];
    mean: number;
    min: number;
    median: number;
    max: number;
    std: number | null;
  }[];
}

/** Made by the script in the same folder, with numpy and scipy. */
const { rates, chances, crowds, samples } = JSON.parse(
  readFileSync(path.join(import.meta.dirname, 'fixtures/summary.json'), 'utf8'),
) as Fixtures;

const NOTHING: SummaryCounts = {
  pending: 0n,
  live: 0n,
  completed: 0n,
  failed: 0n,
  cancelled: 0n,
  judged: 0n,
  successes: 0n,
  rewards: momentsOf([]),
  turns: 0n,
  durations: { count: 0n, seconds: 0 },
  queueTimes: { count: 0n, seconds: 0 },
  tokens: { count: 0n, sum: 0 },
  tasks: [],
};

function task(trials: number, successes: number, fields: Partial<TaskGroups> = {}): TaskGroups {
  return {
    groups: 1n,
    trials: BigInt(trials),
    successes: BigInt(successes),
    unfinished: 0n,
    stopping: [],
    ...fields,
  };
}

function stopping(siblings: string): TaskGroups['stopping'][number] {
  const first = (outcome: string) => (siblings.includes(outcome) ? BigInt(siblings.indexOf(outcome) + 1) : undefined);
  return { groups: 1n, siblings: BigInt(siblings.length), firstSuccess: first('s'), firstUnknown: first('?') };
}

/** pass@k of tasks, as the summary returns it. */
function passAt(k: number, tasks: readonly TaskGroups[]) {
  return summaryOf({ ...NOTHING, tasks }, [k]).passAt[0]!;
}

function rate(successes: number, judged: number) {
  return summaryOf({ ...NOTHING, judged: BigInt(judged), successes: BigInt(successes) }, []).successRate;
}

function near(actual: number | undefined, wanted: number | undefined): void {
  if (wanted === undefined) expect(actual).toBeUndefined();
  else expect(Math.abs(actual! - wanted)).toBeLessThanOrEqual(1e-12 + 1e-11 * Math.abs(wanted));
}

describe('statistics compared with numpy and scipy', () => {
  it.each(rates)('M3: the interval of $successes of $trials is Wilson’s', ({ successes, trials, value, low, high }) => {
    const found = rate(successes, trials);
    near(found?.value, value);
    near(found?.interval?.low, low);
    near(found?.interval?.high, high);
  });

  it.each(chances)('M3: pass@$k of $successes in $trials attempts equals a direct count', (fixture) => {
    const { trials, successes, k, value } = fixture;
    const { estimate, tasks } = passAt(k, [task(trials, successes)]);
    expect([tasks, estimate?.interval]).toEqual([1n, undefined]);
    near(estimate?.value, value);
    // Small probabilities keep their digits.
    if (value > 0) expect(estimate!.value / value).toBeCloseTo(1, 10);
  });

  it('M3: pass@k is averaged over the tasks that count, with their normal interval, clamped', () => {
    let clamped = 0;
    for (const crowd of crowds) {
      const found = summaryOf(
        {
          ...NOTHING,
          tasks: crowd.tasks.map(({ trials, successes, groups, unfinished, stopping: some }) =>
            task(trials, successes, {
              groups: BigInt(groups),
              unfinished: BigInt(unfinished),
              stopping: some.map(stopping),
            }),
          ),
        },
        crowd.passAt.map(({ k }) => k),
      );
      for (const [i, { k, tasks, groupsExcluded, value, low, high }] of crowd.passAt.entries()) {
        const { estimate, ...is } = found.passAt[i]!;
        expect(is).toEqual({ k, tasks: BigInt(tasks), groupsExcluded: BigInt(groupsExcluded) });
        near(estimate?.value, value);
        near(estimate?.interval?.low, low);
        near(estimate?.interval?.high, high);
        if (low === 0 || high === 1) clamped += 1;
      }
    }
    expect(clamped).toBeGreaterThan(5);
  });

  it('M3: mean, sample standard deviation, minimum, median and maximum equal those of numpy', () => {
    for (const { rewards, mean, min, median, max, std } of samples) {
      const found = summaryOf({ ...NOTHING, rewards: momentsOf(rewards) }, []);
      near(found.rewardMean, mean);
      near(found.rewardStd, std ?? undefined);
      expect([found.rewardMin, found.rewardMedian, found.rewardMax]).toEqual([min, median, max]);
      const ofGroup = rewardStatistics([...rewards, Number.NaN]);
      expect(ofGroup.count).toBe(BigInt(rewards.length));
      near(ofGroup.mean, mean);
      near(ofGroup.std, std ?? undefined);
    }
  });
});

const trials = fc.integer({ min: 1, max: 2_000 });
const counted = trials.chain((n) => fc.tuple(fc.constant(n), fc.integer({ min: 0, max: n })));
const reward = fc.oneof(
  fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e6, max: 1e6 }),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
);

describe('statistics of any input', () => {
  it('M3: the interval of a rate is within 0 and 1, contains the rate, and narrows with more of the same', () => {
    fc.assert(
      fc.property(counted, ([n, c]) => {
        const { value, interval } = rate(c, n)!;
        const { low, high } = interval!;
        expect(value).toBe(c / n);
        expect(low >= 0 && low <= value && value <= high && high <= 1 && low < high).toBe(true);
        const more = rate(c * 4, n * 4)!.interval!;
        expect(more.high - more.low).toBeLessThan(high - low);
        // Failures mirror successes.
        const mirrored = rate(n - c, n)!.interval!;
        expect(mirrored.low).toBeCloseTo(1 - high, 12);
      }),
    );
  });

  it('M3: pass@1 is the success rate, more attempts never lower pass@k, and all attempts find any success', () => {
    fc.assert(
      fc.property(counted, fc.nat(1_998), ([n, c], drawn) => {
        const k = 1 + (drawn % n);
        const at = (many: number) => passAt(many, [task(n, c)]).estimate!.value;
        expect(at(1)).toBeCloseTo(c / n, 12);
        expect(at(n)).toBe(c > 0 ? 1 : 0);
        expect(at(k)).toBeGreaterThanOrEqual(0);
        expect(at(k)).toBeLessThanOrEqual(1);
        if (k < n) expect(at(k + 1)).toBeGreaterThanOrEqual(at(k) - 1e-12);
        // The last of k + 1 draws: C(n−c,k)/C(n,k) decreases by the factor (n−c−k)/(n−k).
        if (k < n) expect(1 - at(k + 1)).toBeCloseTo((1 - at(k)) * Math.max(0, (n - c - k) / (n - k)), 10);
        expect(passAt(n + 1, [task(n, c)])).toEqual({
          k: n + 1,
          estimate: undefined,
          tasks: 0n,
          groupsExcluded: 1n,
        });
      }),
    );
  });

  it('M3: a CANCEL_PENDING group counts 1, 0 or not at all by its first k siblings in queue order', () => {
    const groups = ['s???', 'fs??', 'ff?s', 'ffff', '?fff'].map(stopping);
    const [none, of] = [{ groups: 0n }, (k: number) => passAt(k, [task(0, 0, { ...none, stopping: groups })])];
    expect([1, 2, 3, 4, 5].map((k) => [of(k).estimate?.value, of(k).groupsExcluded])).toEqual([
      [1 / 4, 1n],
      [2 / 4, 1n],
      [2 / 3, 2n],
      [3 / 4, 1n],
      [undefined, 5n],
    ]);
  });

  it('M3: the mean of rewards is between the smallest and the largest, however large they are', () => {
    fc.assert(
      fc.property(fc.array(reward, { minLength: 1, maxLength: 40 }), (rewards) => {
        const found = summaryOf({ ...NOTHING, rewards: momentsOf(rewards) }, []);
        const [least, greatest] = [Math.min(...rewards), Math.max(...rewards)];
        for (const value of [found.rewardMean!, found.rewardMedian!]) {
          expect(value).toBeGreaterThanOrEqual(least);
          expect(value).toBeLessThanOrEqual(greatest);
        }
      }),
    );
  });
});

describe('statistics without input', () => {
  it('M3: without rollouts every statistic is unset, and the summary is finished', () => {
    const { rollouts, finished, unjudged, passAt: passes, ...rest } = summaryOf(NOTHING, [1, 8]);
    expect([rollouts, finished, unjudged]).toEqual([0n, true, 0n]);
    expect(passes).toEqual([1, 8].map((k) => ({ k, estimate: undefined, tasks: 0n, groupsExcluded: 0n })));
    for (const value of Object.values(rest)) expect(value).toBeUndefined();
  });

  it('M3: rollouts without a verdict are excluded and counted; means are over terminal ones', () => {
    const found = summaryOf(
      {
        ...NOTHING,
        pending: 2n,
        live: 3n,
        completed: 4n,
        failed: 2n,
        cancelled: 1n,
        judged: 5n,
        successes: 2n,
        turns: 35n,
        durations: { count: 4n, seconds: 10 },
        queueTimes: { count: 4n, seconds: 6 },
        tokens: { count: 3n, sum: 900 },
      },
      [],
    );
    expect(found).toMatchObject({ rollouts: 12n, finished: false, unjudged: 1n, meanTurns: 5, meanSeconds: 2.5 });
    expect(found.meanQueueSeconds).toBe(1.5);
    expect(summaryOf(NOTHING, []).meanQueueSeconds).toBeUndefined();
    expect(found).toMatchObject({ tokens: 900, tokensPerSuccess: 450, successRate: { value: 0.4 } });
    expect(summaryOf({ ...NOTHING, tokens: { count: 1n, sum: 7 } }, [])).toMatchObject({
      tokens: 7,
      tokensPerSuccess: undefined,
    });
  });
});
