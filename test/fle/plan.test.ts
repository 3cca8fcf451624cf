import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Chain, planVersion, type StepPosition, type StoredTrajectory } from '../../src/fle/plan.ts';
import type { Program, TrajectoryKey } from '../../src/fle/programs.ts';

const LINES = ['a', 'b'].map((processId) => ({ key: processId, processId, taskKey: 't' }) as TrajectoryKey);
const OTHER_TASK = { key: 'c', processId: 'a', taskKey: 'u' } as TrajectoryKey;

function program(id: number, parentId?: number, trajectoryKey: TrajectoryKey = LINES[0]!): Program {
  return { id, parentId, createTime: undefined, trajectoryKey };
}

function byId(programs: readonly Program[]): Map<number, Program> {
  return new Map(programs.map((each) => [each.id, each]));
}

/** A store that contains what chains describe, and refuses what the server would refuse. */
class Store {
  readonly programs = new Map<number, StepPosition>();
  readonly trajectories = new Map<string, StoredTrajectory>();
  readonly starts = new Map<string, Chain['start']>();

  /** Stores the first `count` programs of the plan, as if the import was interrupted after them. */
  take(chains: readonly Chain[], count = Number.POSITIVE_INFINITY): void {
    let left = count;
    for (const { trajectoryId, start, firstStepNumber, ids } of chains) {
      if (start !== 'exists') this.#create(trajectoryId, start);
      expect(this.trajectories.get(trajectoryId)?.nextStepNumber).toBe(firstStepNumber);
      for (const [i, id] of ids.entries()) {
        if (left-- <= 0) return;
        expect(this.programs.has(id)).toBe(false);
        const stepNumber = firstStepNumber + BigInt(i);
        this.programs.set(id, { trajectoryId, stepNumber });
        this.trajectories.set(trajectoryId, { nextStepNumber: stepNumber + 1n, sealed: false });
      }
    }
  }

  #create(id: string, start: Chain['start']): void {
    expect(this.trajectories.has(id)).toBe(false);
    const point = typeof start === 'object' ? start.stepNumber : 0n;
    if (typeof start === 'object') {
      expect(this.trajectories.get(start.trajectoryId)?.nextStepNumber).toBeGreaterThan(point);
    }
    this.trajectories.set(id, { nextStepNumber: point + 1n, sealed: false });
    this.starts.set(id, start);
  }

  /** The location of the step before the program: in its own trajectory, or at the branch point. */
  placeBefore(id: number): StepPosition {
    const { trajectoryId, stepNumber } = this.programs.get(id)!;
    const start = this.starts.get(trajectoryId);
    const isFirst = typeof start === 'object' && start.stepNumber + 1n === stepNumber;
    return isFirst ? start : { trajectoryId, stepNumber: stepNumber - 1n };
  }
}

function plan(programs: readonly Program[], store: Store): Chain[] {
  return planVersion(byId(programs), store, (name) => name);
}

/** The chains as text: `line a: 1 2 3`, `program 4 from line a@2: 4`. */
function textOf(chains: readonly Chain[]): string[] {
  return chains.map(({ trajectoryId, start, ids }) => {
    const from = typeof start === 'object' ? ` from ${start.trajectoryId}@${start.stepNumber}` : '';
    return `${trajectoryId}${start === 'exists' ? ' again' : from}: ${ids.join(' ')}`;
  });
}

describe('planVersion', () => {
  it('makes one trajectory of a chain, and a branch of every later child', () => {
    const programs = [program(1), program(2, 1), program(3, 2), program(4, 2), program(5, 4), program(6, 1)];
    expect(textOf(plan(programs, new Store()))).toEqual([
      'line a: 1 2 3',
      'program 4 from line a@2: 4 5',
      'program 6 from line a@1: 6',
    ]);
  });

  it('starts a branch where instance, process or model change, and a root where the task changes', () => {
    const programs = [
      program(1),
      program(2, 1, LINES[1]),
      program(3, 2, LINES[1]),
      program(4, 1),
      program(5, 4, OTHER_TASK),
    ];
    expect(textOf(plan(programs, new Store()))).toEqual(['line a: 1 4', 'program 2 from line a@1: 2 3', 'line c: 5']);
  });

  it('starts at step 0 of the trajectory for programs without a parent in the source', () => {
    const programs = [program(1), program(2), program(3, 999), program(4, 2)];
    expect(textOf(plan(programs, new Store()))).toEqual([
      'line a: 1',
      'program 2 from line a@0: 2 4',
      'program 3 from line a@0: 3',
    ]);
  });

  it('uses a branch and a root that an interrupted import left without a program', () => {
    const programs = [program(1), program(2, 1), program(3, 1)];
    const store = new Store();
    const chains = plan(programs, store);
    store.take(chains, 0);
    expect(textOf(plan(programs, store))).toEqual(['line a again: 1 2', 'program 3 from line a@1: 3']);
    store.take(plan(programs, store), 2);
    expect(textOf(plan(programs, store))).toEqual(['program 3 again: 3']);
  });

  it('branches from a sealed trajectory instead of appending to it', () => {
    const programs = [program(1), program(2, 1)];
    const store = new Store();
    store.take(plan([program(1)], store));
    store.trajectories.set('line a', { nextStepNumber: 2n, sealed: true });
    expect(textOf(plan(programs, store))).toEqual(['program 2 from line a@1: 2']);
  });

  it('refuses programs that are their own ancestors', () => {
    const programs = [program(1), program(2, 4), program(3, 2), program(4, 3)];
    expect(() => plan(programs, new Store())).toThrow('Program 2 is its own ancestor (parent_id): correct it.');
    expect(() => plan([program(1, 1)], new Store())).toThrow('Program 1 is its own ancestor');
  });

  it('I3: stores each program once, after its parent, whatever interruptions occur and whenever programs are added', () => {
    const one = fc.record({
      parent: fc.option(fc.nat(), { nil: undefined }),
      trajectoryKey: fc.constantFrom(...LINES, OTHER_TASK),
      arrival: fc.nat(3),
    });
    const interruptions = fc.array(fc.nat(6), { maxLength: 6 });
    fc.assert(
      fc.property(fc.array(one, { maxLength: 30 }), interruptions, (drawn, counts) => {
        // A parent has a smaller id. A row may become visible before one with a smaller id, but not before its parent.
        const arrivals: number[] = [];
        const programs = drawn.map(({ parent, trajectoryKey }, i) =>
          program(i, i > 0 && parent !== undefined ? parent % i : undefined, trajectoryKey),
        );
        for (const [i, { parentId }] of programs.entries()) {
          arrivals.push(Math.max(drawn[i]?.arrival ?? 0, parentId === undefined ? 0 : (arrivals[parentId] ?? 0)));
        }
        const store = new Store();
        for (let time = 0; time <= 3; time += 1) {
          const visible = programs.filter((_, i) => (arrivals[i] ?? 0) <= time);
          for (const count of counts) store.take(plan(visible, store), count);
          store.take(plan(visible, store));
          expect(plan(visible, store)).toEqual([]);
          expect(store.programs.size).toBe(visible.length);
        }
        for (const { id, parentId, trajectoryKey } of programs) {
          const parent = parentId === undefined ? undefined : programs[parentId];
          const before = store.placeBefore(id);
          if (parent !== undefined && parent.trajectoryKey.taskKey === trajectoryKey.taskKey)
            expect(before).toEqual(store.programs.get(parent.id));
          else expect(before).toEqual({ trajectoryId: `line ${trajectoryKey.key}`, stepNumber: 0n });
        }
      }),
    );
  });
});
