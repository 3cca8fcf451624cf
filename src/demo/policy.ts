/**
 * Improves the policy of the demo's training. Policies are sampled around the current one, and the better half of each
 * group moves it.
 */
import type { Gains } from './cartpole.ts';
import type { Random } from './random.ts';

/** A policy that uses only the angle, and soon fails. */
export const FIRST_POLICY: Gains = { x: 0, xDot: 0, theta: 5, thetaDot: 0 };

/** Standard deviations of the samples. */
const SPREAD: Gains = { x: 0.2, xDot: 0.2, theta: 0.5, thetaDot: 0.5 };

/** Returns the policy itself and `count - 1` samples around it. */
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
 * Returns the weighted mean of all samples. The weight of a sample is its advantage over its group, in standard
 * deviations, and 0 if it was worse. Returns the policy unchanged if no group has an advantage.
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

/** Returns a normally distributed number (Box and Muller). */
function normal(random: Random): number {
  const radius = Math.sqrt(-2 * Math.log(1 - random.uniform(0, 1)));
  return radius * Math.cos(2 * Math.PI * random.uniform(0, 1));
}
