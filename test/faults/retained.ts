/** Data that tests of retention under faults remove, and what has to be left of it. */
import { expect } from 'vitest';
import { ENDED, type RetentionPart, type RetentionPolicy } from '../../src/domain/retention.ts';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { readWhole, type Scene } from '../store/scene.ts';
import { stateOf } from '../store/state_chains.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';

const STEPS = 8;
const TAGGED = 2;

export const STATES: RetentionPolicy = {
  states: {
    names: ['env', 'agent'],
    mediaTypes: [],
    keepLast: 1,
    keepEvery: 0n,
    olderThan: 0n,
    keepTagged: true,
    keepBranchPoints: true,
    keepTerminal: true,
  },
};
export const WHOLE: RetentionPolicy = {
  trajectories: {
    statuses: ENDED,
    labels: new Map(),
    keepLast: 0,
    olderThan: 0n,
    keepTagged: true,
    onBranches: 'KEEP_SHARED',
  },
};

export interface Made {
  readonly trajectory: Trajectory;
  readonly states: readonly NewState[];
  /** Retention deletes it. */
  readonly isSealed: boolean;
}

/** Each has two segments, and a tag. Every fourth is sealed, without a tag. */
export async function makeTrajectories(scene: Scene, count: number): Promise<Made[]> {
  const made: Made[] = [];
  for (let t = 0; t < count; t += 1) {
    const trajectory = await scene.create();
    const isSealed = t % 4 === 3;
    // States of one name depend on each other, so the removal of one stores others anew.
    const states = Array.from({ length: STEPS }, (_, i) => stateOf(t, 16 * 1024, [i]));
    const steps = states.map((state, i) =>
      makeStep(BigInt(i), { states: [smallRef(newState(`agent ${t} ${i}`), 'agent'), stateRef(state)] }),
    );
    await scene.append(trajectory, steps.slice(0, 3), { states: states.slice(0, 3) });
    await scene.append(trajectory, steps.slice(3), { states: states.slice(3) });
    if (isSealed) await scene.seal(trajectory);
    else await scene.store.setTag(scene.namespace, trajectory.id, 'best', BigInt(TAGGED), -1n);
    made.push({ trajectory, states, isSealed });
  }
  return made;
}

/** All steps are there. The last and the tagged one have their states; each other state is there or pruned. */
export async function expectKept(scene: Scene, { trajectory, states, isSealed }: Made): Promise<void> {
  if (isSealed && !(await scene.isThere(trajectory.id))) return;
  const steps = await scene.steps(trajectory);
  expect(steps.length).toBe(STEPS);
  for (const [i, { step }] of steps.entries()) {
    const env = step.states.find(({ name }) => name === 'env');
    expect(env?.digest).toBe(states[i]!.digest);
    const isPruned = env?.prunedTime !== undefined;
    if (i === TAGGED || i === STEPS - 1) expect(isSealed || !isPruned).toBe(true);
    if (isPruned) continue;
    const data = await readWhole(scene.store, scene.namespace, states[i]!.digest);
    expect(Buffer.compare(data, states[i]!.data)).toBe(0);
  }
}

/** Returns what a call leaves: of trajectories that retention keeps, the tagged state and the last one. */
export function keptStates(made: readonly Made[]): NewState[] {
  return made.filter(({ isSealed }) => !isSealed).flatMap(({ states }) => [states[TAGGED]!, states.at(-1)!]);
}

export async function partsOf(scene: Scene, apply: boolean): Promise<RetentionPart[]> {
  const parts: RetentionPart[] = [];
  for (const policy of [STATES, WHOLE]) {
    for await (const part of (await scene.store.retain(scene.namespace, policy, { apply })).parts) parts.push(part);
  }
  return parts;
}

export function isRemoval({ pruned, deletedFrom }: RetentionPart): boolean {
  return pruned.length > 0 || deletedFrom !== undefined;
}
