import type { Program, TrajectoryKey } from './programs.ts';
import { FleImportError } from './source.ts';

/** What a run already contains of its version. */
export interface Stored {
  readonly trajectories: ReadonlyMap<string, StoredTrajectory>;
  readonly programs: ReadonlyMap<number, StepPosition>;
}

export interface StoredTrajectory {
  readonly nextStepNumber: bigint;
  readonly sealed: boolean;
}

/** The step that stores a program, or will store it. */
export interface StepPosition {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
}

/** Programs to append to one trajectory, in order. */
export interface Chain {
  readonly trajectoryId: string;
  /** How the trajectory begins: as a root with an empty step 0, as a branch of another one, or it exists already. */
  readonly start: 'root' | 'exists' | StepPosition;
  readonly trajectoryKey: TrajectoryKey;
  readonly firstStepNumber: bigint;
  readonly ids: number[];
  /** The chain that must be stored before, because it contains the branch point. */
  readonly after: Chain | undefined;
}

/**
 * Decides where the programs of one version that are not stored yet are stored. A program follows its parent:
 *
 * - in the parent's trajectory, if the parent is the last step there and both have the same trajectory key;
 * - else in a branch at the parent's step.
 *
 * A program whose parent is NULL, not in the source, or of another version or task follows step 0 of the trajectory of
 * its trajectory key: in that trajectory if it is the first program, else in a branch at step 0.
 *
 * The result depends only on the programs, on what is stored, and on `newId`, which returns the same id for the same
 * name. Chains are returned in an order in which each can be stored. Errors: FleImportError if programs are their own
 * ancestors.
 */
export function planVersion(
  programs: ReadonlyMap<number, Program>,
  stored: Stored,
  newId: (name: string) => string,
): Chain[] {
  const planner = new Planner(stored, newId);
  for (const program of parentsFirst(programs)) {
    if (!stored.programs.has(program.id)) planner.add(program, parentOf(program, programs));
  }
  return planner.chains;
}

/**
 * Returns the program to continue from. A branch has the task of its parent, so a program of another task is excluded.
 */
function parentOf({ parentId, trajectoryKey }: Program, programs: ReadonlyMap<number, Program>): Program | undefined {
  const parent = parentId === undefined ? undefined : programs.get(parentId);
  return parent?.trajectoryKey.taskKey === trajectoryKey.taskKey ? parent : undefined;
}

/** Yields every program after its parent, otherwise by id. */
function* parentsFirst(programs: ReadonlyMap<number, Program>): Generator<Program> {
  const done = new Set<number>();
  for (const program of programs.values()) {
    const path: Program[] = [];
    const onPath = new Set<number>();
    for (let next: Program | undefined = program; next !== undefined && !done.has(next.id); ) {
      if (onPath.has(next.id))
        throw new FleImportError(`Program ${next.id} is its own ancestor (parent_id): correct it.`);
      path.push(next);
      onPath.add(next.id);
      next = next.parentId === undefined ? undefined : programs.get(next.parentId);
    }
    for (const each of path.reverse()) {
      done.add(each.id);
      yield each;
    }
  }
}

/** The end of a trajectory after the chains so far are stored. */
interface End {
  nextStepNumber: bigint;
  readonly sealed: boolean;
  chain: Chain | undefined;
}

class Planner {
  readonly chains: Chain[] = [];
  readonly #newId: (name: string) => string;
  readonly #positions: Map<number, StepPosition>;
  readonly #ends: Map<string, End>;

  constructor({ trajectories, programs }: Stored, newId: (name: string) => string) {
    this.#newId = newId;
    this.#positions = new Map(programs);
    this.#ends = new Map([...trajectories].map(([id, end]) => [id, { ...end, chain: undefined }]));
  }

  add(program: Program, parent: Program | undefined): void {
    const position = parent === undefined ? undefined : this.#positions.get(parent.id);
    if (position === undefined) this.#addFirst(program);
    else this.#addAfter(program, position, parent?.trajectoryKey === program.trajectoryKey);
  }

  #addFirst(program: Program): void {
    const trajectoryId = this.#newId(`line ${program.trajectoryKey.key}`);
    if (!this.#ends.has(trajectoryId)) {
      this.#ends.set(trajectoryId, { nextStepNumber: 1n, sealed: false, chain: undefined });
      this.#append(program, trajectoryId, 'root', undefined);
    } else {
      this.#addAfter(program, { trajectoryId, stepNumber: 0n }, true);
    }
  }

  #addAfter(program: Program, position: StepPosition, sameTrajectory: boolean): void {
    const end = this.#ends.get(position.trajectoryId);
    if (sameTrajectory && end !== undefined && !end.sealed && end.nextStepNumber === position.stepNumber + 1n) {
      this.#append(program, position.trajectoryId, 'exists', undefined);
    } else {
      this.#addToBranch(program, position, end?.chain);
    }
  }

  /** An interrupted import may have created the branch without a step. */
  #addToBranch(program: Program, position: StepPosition, after: Chain | undefined): void {
    const branchId = this.#newId(`program ${program.id}`);
    const exists = this.#ends.has(branchId);
    if (!exists) {
      this.#ends.set(branchId, { nextStepNumber: position.stepNumber + 1n, sealed: false, chain: undefined });
    }
    this.#append(program, branchId, exists ? 'exists' : position, exists ? undefined : after);
  }

  #append(program: Program, trajectoryId: string, start: Chain['start'], after: Chain | undefined): void {
    const end = this.#ends.get(trajectoryId)!;
    if (end.chain === undefined) {
      const { trajectoryKey } = program;
      end.chain = { trajectoryId, start, trajectoryKey, firstStepNumber: end.nextStepNumber, ids: [], after };
      this.chains.push(end.chain);
    }
    end.chain.ids.push(program.id);
    this.#positions.set(program.id, { trajectoryId, stepNumber: end.nextStepNumber });
    end.nextStepNumber += 1n;
  }
}
