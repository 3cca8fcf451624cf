/** How the demo's training gets better: policies are sampled around the current one, and the better half of each group pulls it along. */
import type { Gains } from './controller.ts';
import type { Random } from './random.ts';

/** Answers to the angle alone, and falls soon. */
export const FIRST_POLICY: Gains = { x: 0, xDot: 0, theta: 5, thetaDot: 0 };

/** How far samples stray, one standard deviation. */
const SPREAD: Gains = { x: 0.2, xDot: 0.2, theta: 0.5, thetaDot: 0.5 };

/** The policy itself, then so many others around it. */
export function samplePolicies(policy: Gains, count: number, random: Random): Gains[] {
  const others = Array.from({ length: count - 1 }, () =>
    ofEach((name) => policy[name] + SPREAD[name] * normal(random)),
  );
  return [policy, ...others];
}

export interface Sample {
  readonly policy: Gains;
  /** The sum of the rewards. */
  readonly reward: number;
}

/**
 * The mean of all samples, each weighted by how much better than its group it was: its advantage, in standard deviations of the group; those
 * that were worse count nothing. The policy as it is where no group has learned anything.
 */
export function improvePolicy(policy: Gains, groups: readonly (readonly Sample[])[]): Gains {
  const weighted = groups.flatMap((group) => {
    const mean = group.reduce((sum, { reward }) => sum + reward, 0) / group.length;
    const variance = group.reduce((sum, { reward }) => sum + (reward - mean) ** 2, 0) / (group.length - 1);
    if (!(variance > 0)) return [];
    return group.map((sample) => ({ ...sample, weight: Math.max(0, (sample.reward - mean) / Math.sqrt(variance)) }));
  });
  const total = weighted.reduce((sum, { weight }) => sum + weight, 0);
  if (total === 0) return policy;
  return ofEach((name) => weighted.reduce((sum, sample) => sum + sample.weight * sample.policy[name], 0) / total);
}

function ofEach(value: (name: keyof Gains) => number): Gains {
  return { x: value('x'), xDot: value('xDot'), theta: value('theta'), thetaDot: value('thetaDot') };
}

/** Normally distributed, by Box and Muller. */
function normal(random: Random): number {
  const radius = Math.sqrt(-2 * Math.log(1 - random.uniform(0, 1)));
  return radius * Math.cos(2 * Math.PI * random.uniform(0, 1));
}
