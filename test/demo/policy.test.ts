import { describe, expect, it } from 'vitest';
import { type Gains, Random } from '../../src/demo/cartpole.ts';
import { FIRST_POLICY, improvePolicy, samplePolicies } from '../../src/demo/training.ts';

const towards = (thetaDot: number): Gains => ({ ...FIRST_POLICY, thetaDot });

describe('the policies of the demo', () => {
  it('are sampled around the current one, which is the first; the same seed gives the same policies', () => {
    const sampled = samplePolicies(FIRST_POLICY, 4, Random.seeded(7));
    expect(sampled).toHaveLength(4);
    expect(sampled[0]).toEqual(FIRST_POLICY);
    expect(new Set(sampled.map((policy) => JSON.stringify(policy))).size).toBe(4);
    expect(samplePolicies(FIRST_POLICY, 4, Random.seeded(7))).toEqual(sampled);
  });

  it('are updated towards the better ones of each group, in proportion to their advantage', () => {
    const group = (...rewards: number[]) => rewards.map((reward, i) => ({ policy: towards(i), reward }));
    expect(improvePolicy(FIRST_POLICY, [group(10, 20)])).toEqual(towards(1));
    expect(improvePolicy(FIRST_POLICY, [group(0, 0, 9, 9)]).thetaDot).toBeCloseTo(2.5);
    // Each group is measured against its own mean: neither the easier task nor the larger rewards have more weight.
    expect(improvePolicy(FIRST_POLICY, [group(0, 1), group(1000, 0)]).thetaDot).toBeCloseTo(0.5);
  });

  it('stay the same if no group has differing rewards', () => {
    const same = [towards(1), towards(2)].map((policy) => ({ policy, reward: 9 }));
    expect(improvePolicy(FIRST_POLICY, [same, same])).toEqual(FIRST_POLICY);
    expect(improvePolicy(FIRST_POLICY, [[{ policy: towards(1), reward: 9 }]])).toEqual(FIRST_POLICY);
    expect(improvePolicy(FIRST_POLICY, [])).toEqual(FIRST_POLICY);
  });
});
