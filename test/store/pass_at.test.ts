import { expect, it } from 'vitest';
import type { OnSuccess } from '../../src/domain/rollout.ts';
import { summaryOf } from '../../src/domain/summary.ts';
import { dose } from '../support/dose.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';

/** All random numbers of the test come from this seed, so that every run has the same numbers. */
const SEED = 20_261_122;
/** The probability that one attempt succeeds, for each task. The mean is 0.3. */
const CHANCES = [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];
const GROUPS = 15;
const SIBLINGS = 8;
const KS = [1, 2, 4, 8];
const WORKERS = dose([1, 4], [1, 2, 4, 8]);

type Fate = 'succeeded' | 'judged' | 'failed' | 'cancelled';
const COLUMNS: Readonly<Record<Fate, string>> = {
  succeeded: `status = 'COMPLETED', success = true`,
  judged: `status = 'COMPLETED', success = false`,
  failed: `status = 'FAILED', success = false`,
  cancelled: `status = 'CANCELLED', success = null`,
};

/**
 * The outcomes of siblings in queue order. Each worker takes the next sibling when it is free; failed attempts take
 * longer.
 */
function play(onSuccess: OnSuccess, workers: number, chance: number, random: () => number): Fate[] {
  const fates: Fate[] = Array.from({ length: SIBLINGS }, () => 'cancelled');
  const freeAt = Array.from({ length: workers }, () => 0);
  let stopsAt = Number.POSITIVE_INFINITY;
  for (let i = 0; i < SIBLINGS; i += 1) {
    const worker = freeAt.indexOf(Math.min(...freeAt));
    if (freeAt[worker]! >= stopsAt) break;
    const succeeded = random() < chance;
    fates[i] = succeeded ? 'succeeded' : random() < 0.5 ? 'judged' : 'failed';
    freeAt[worker]! += (succeeded ? 1 : 3) * (0.1 + random());
    if (succeeded && onSuccess === 'CANCEL_PENDING') stopsAt = Math.min(stopsAt, freeAt[worker]!);
  }
  return fates;
}

describeStore('pass@k', (on) => {
  it.each(['CONTINUE', 'CANCEL_PENDING'] as const)(
    `M3: is the true probability under %s, with few and many workers a group (seed ${SEED})`,
    async (onSuccess) => {
      let seed = SEED;
      const random = () => {
        // mulberry32
        seed = (seed + 0x6d_2b_79_f5) | 0;
        let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
        t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
        return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
      };
      const here = new RolloutScene(on.store);
      for (const chance of CHANCES) await here.task(`${chance}`);
      for (const workers of WORKERS) {
        const { run, stage } = await here.place();
        const places: Record<Fate, number[]> = { succeeded: [], judged: [], failed: [], cancelled: [] };
        for (const [i, chance] of CHANCES.entries()) {
          const groups = Array.from({ length: GROUPS }, (_, group) => i * GROUPS + group);
          const newRollouts = groups.flatMap((group) =>
            Array.from({ length: SIBLINGS }, (_, number) => ({
              groupNumber: BigInt(group),
              number: BigInt(number),
              taskId: `${chance}`,
              onSuccess,
            })),
          );
          await here.makeRollouts(stage, newRollouts);
          for (const group of groups) {
            const fates = play(onSuccess, workers, chance, random);
            for (const [number, fate] of fates.entries()) places[fate].push(group * SIBLINGS + number);
          }
        }
        // Writes the rows as if all had been played: the statistics depend on rows only.
        for (const [fate, some] of Object.entries(places)) {
          if (some.length === 0) continue;
          await on.sql.rows(`update rollouts set ${COLUMNS[fate as Fate]}
            where stage = ${stage.key} and group_number * ${SIBLINGS} + number in (${some.join(', ')})`);
        }
        const filter = { runs: [run.id], experimentId: undefined, stageKinds: [], taskIds: [] };
        const [row] = await here.store.summarize(
          here.namespace,
          { ...filter, runLabels: new Map(), labels: new Map() },
          [],
        );
        for (const { k, estimate, tasks, groupsExcluded } of summaryOf(row!, KS).passAt) {
          const truths = CHANCES.map((chance) => 1 - (1 - chance) ** k);
          const truth = truths.reduce((sum, value) => sum + value, 0) / truths.length;
          // One 0 or 1 for each group. The estimate from CONTINUE groups is at least as precise.
          const variance = truths.reduce((sum, value) => sum + (value * (1 - value)) / GROUPS, 0) / truths.length ** 2;
          const what = `pass@${k} with ${workers} workers: ${estimate?.value}, in truth ${truth}`;
          expect([tasks, groupsExcluded], what).toEqual([BigInt(CHANCES.length), 0n]);
          expect(Math.abs(estimate!.value - truth), what).toBeLessThanOrEqual(5 * Math.sqrt(variance));
        }
      }
    },
  );
});
