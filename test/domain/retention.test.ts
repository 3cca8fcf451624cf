import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  decideTree,
  type StatePolicy,
  StateSelection,
  type StepFacts,
  type StepPins,
  type TrajectoryPolicy,
  type TreeMember,
} from '../../src/domain/retention.ts';

const name = fc.constantFrom('agent', 'env', 'tree');
const mediaType = fc.constantFrom('image/png', 'text/plain');
const policy: fc.Arbitrary<StatePolicy> = fc.record({
  names: fc.uniqueArray(name),
  mediaTypes: fc.uniqueArray(mediaType),
  keepLast: fc.nat(4),
  keepEvery: fc.bigInt(0n, 4n),
  olderThan: fc.bigInt(0n, 10n),
  keepTagged: fc.boolean(),
  keepBranchPoints: fc.boolean(),
  keepTerminal: fc.boolean(),
});
const steps: fc.Arbitrary<StepFacts[]> = fc
  .array(
    fc.record({
      commitTime: fc.bigInt(0n, 20n),
      isTerminal: fc.boolean(),
      names: fc.uniqueArray(name),
      mediaTypes: fc.array(mediaType, { maxLength: 3 }),
    }),
    { maxLength: 20 },
  )
  .map((list) => list.map((each, i) => ({ ...each, stepNumber: BigInt(i) })));
const numbers = fc.uniqueArray(fc.bigInt(0n, 20n)).map((list) => new Set(list));
const pins: fc.Arbitrary<StepPins> = fc.record({ tagged: numbers, branchPoints: numbers, isLive: fc.boolean() });

function select(of: StatePolicy, asOf: bigint, facts: readonly StepFacts[], pinned: StepPins) {
  const selection = new StateSelection(of, asOf, pinned);
  return facts.flatMap((each) => selection.add(each) ?? []);
}

describe('the selection of states', () => {
  it('S14: a step loses what the policy names, unless a rule keeps it; pins tell why the others keep it', () => {
    fc.assert(
      fc.property(policy, fc.bigInt(5n, 25n), steps, pins, (of, asOf, all, pinned) => {
        const facts = all.filter(({ commitTime }) => commitTime <= asOf);
        const has = facts.filter(
          (each) =>
            each.names.some((one) => of.names.includes(one)) ||
            each.mediaTypes.some((one) => of.mediaTypes.includes(one)),
        );
        const beyond = has.slice(0, Math.max(has.length - of.keepLast, 0));
        const expected = beyond.filter(
          ({ stepNumber, commitTime, isTerminal }) =>
            commitTime <= asOf - of.olderThan &&
            !(of.keepEvery > 0n && stepNumber % of.keepEvery === 0n) &&
            !(of.keepTerminal && isTerminal),
        );
        const selected = select(of, asOf, all, pinned);
        expect(selected.map(({ facts: { stepNumber } }) => stepNumber)).toEqual(
          expected.map(({ stepNumber }) => stepNumber),
        );
        for (const { facts: each, pruning, pins: found } of selected) {
          expect(new Set(pruning.names)).toEqual(new Set(each.names.filter((one) => of.names.includes(one))));
          expect(found.includes('TAG')).toBe(of.keepTagged && pinned.tagged.has(each.stepNumber));
          expect(found.includes('BRANCH')).toBe(of.keepBranchPoints && pinned.branchPoints.has(each.stepNumber));
          expect(found.includes('LIVE_ROLLOUT')).toBe(pinned.isLive);
        }
      }),
    );
  });

  it('S14: after it was applied, the same policy as of the same time selects nothing but what is pinned', () => {
    fc.assert(
      fc.property(policy, fc.bigInt(5n, 25n), steps, pins, (of, asOf, all, pinned) => {
        const gone = new Map(
          select(of, asOf, all, pinned)
            .filter((each) => each.pins.length === 0)
            .map(({ pruning }) => [pruning.stepNumber, pruning]),
        );
        const left = all.map((each) => {
          const pruned = gone.get(each.stepNumber);
          return {
            ...each,
            names: each.names.filter((one) => !pruned?.names.includes(one)),
            mediaTypes: each.mediaTypes.filter((one) => !pruned?.mediaTypes.includes(one)),
          };
        });
        for (const again of select(of, asOf, left, pinned)) expect(again.pins).not.toEqual([]);
      }),
    );
  });

  it('S14: steps that are appended after the time of a plan change nothing', () => {
    fc.assert(
      fc.property(policy, steps, steps, pins, (of, before, after, pinned) => {
        const later = after.map((each, i) => ({ ...each, stepNumber: BigInt(before.length + i), commitTime: 21n }));
        expect(select(of, 20n, [...before, ...later], pinned)).toEqual(select(of, 20n, before, pinned));
      }),
    );
  });
});

const KEEP: TrajectoryPolicy = {
  statuses: [],
  labels: new Map(),
  keepLast: 0,
  olderThan: 0n,
  keepTagged: true,
  onBranches: 'KEEP_SHARED',
};

/** A tree of up to 12 trajectories, whose hidden ones have branches. */
const tree: fc.Arbitrary<TreeMember[]> = fc
  .array(
    fc.record({
      parent: fc.nat(20),
      branchPoint: fc.bigInt(0n, 9n),
      hidden: fc.boolean(),
      isSelected: fc.boolean(),
      isTagged: fc.nat(4),
      isLive: fc.nat(4),
    }),
    { minLength: 1, maxLength: 12 },
  )
  .map((list) => {
    const members = list.map(({ parent, branchPoint, isTagged, isLive, ...each }, i) => ({
      ...each,
      key: BigInt(i + 1),
      parent: i === 0 ? undefined : BigInt((parent % i) + 1),
      branchPoint: i === 0 ? undefined : branchPoint,
      isTagged: isTagged === 0,
      isLive: isLive === 0,
    }));
    const hasBranch = (key: bigint) => members.some((each) => each.parent === key);
    return members.map((each) => ({ ...each, hidden: each.hidden && hasBranch(each.key) }));
  });

describe('the decision on the trajectories of a tree', () => {
  const mode = fc.constantFrom<TrajectoryPolicy['onBranches']>('REFUSE', 'CASCADE', 'KEEP_SHARED');

  it('S14: every selected trajectory is deleted or pinned; nothing that is left needs a step that goes', () => {
    fc.assert(
      fc.property(tree, mode, fc.boolean(), (members, onBranches, keepTagged) => {
        const decisions = decideTree(members, { ...KEEP, onBranches, keepTagged });
        const of = new Map(decisions.map((each) => [each.key, each]));
        expect(of.size).toBe(decisions.length);
        for (const { key, parent, branchPoint, hidden, isSelected, isTagged, isLive } of members) {
          const own = of.get(key);
          if (isSelected && !hidden) expect(own).toBeDefined();
          if (own !== undefined && own.keptSteps !== undefined) {
            // Live trajectories and tagged ones never go, in any mode.
            expect(isLive && !hidden).toBe(false);
            expect(keepTagged && isTagged && !hidden).toBe(false);
            if (onBranches === 'REFUSE') expect(hidden || own.keptSteps === 'none').toBe(true);
          }
          if (own?.keptSteps === 'none' || parent === undefined) continue;
          const above = of.get(parent)?.keptSteps;
          expect(above).not.toBe('none');
          if (typeof above === 'object') expect(branchPoint! < above.upTo).toBe(true);
        }
      }),
    );
  });

  it('S14: CASCADE deletes the branches too, and a hidden parent goes with its last branch', () => {
    const member = (key: bigint, parent?: bigint, fields: Partial<TreeMember> = {}): TreeMember => ({
      key,
      parent,
      branchPoint: parent === undefined ? undefined : 3n,
      hidden: false,
      isSelected: false,
      isTagged: false,
      isLive: false,
      ...fields,
    });
    const chain = [member(1n, undefined, { hidden: true }), member(2n, 1n, { isSelected: true }), member(3n, 2n)];
    const told = (policy: TrajectoryPolicy) =>
      decideTree(chain, policy).map(({ key, keptSteps, pins }) => [key, keptSteps ?? pins]);
    expect(told({ ...KEEP, onBranches: 'CASCADE' })).toEqual([
      [3n, 'none'],
      [2n, 'none'],
      [1n, 'none'],
    ]);
    expect(told(KEEP)).toEqual([[2n, { upTo: 4n }]]);
    expect(told({ ...KEEP, onBranches: 'REFUSE' })).toEqual([[2n, ['BRANCH']]]);
  });
});
