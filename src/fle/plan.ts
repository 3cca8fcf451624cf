import type { Line, Program } from './programs.ts';
import { FleImportError } from './source.ts';

/** What a run already holds of its version. */
export interface Stored {
  readonly trajectories: ReadonlyMap<string, StoredTrajectory>;
  readonly programs: ReadonlyMap<number, Place>;
}

export interface StoredTrajectory {
  readonly nextStepNumber: bigint;
  readonly sealed: boolean;
}

/** Where a program is, or will be, stored. */
export interface Place {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
}

/** Programs to append to one trajectory, in order. */
export interface Chain {
  readonly trajectoryId: string;
  /** How the trajectory comes to be: a root with an empty step 0, a branch of another one, or it exists. */
  readonly start: 'root' | 'exists' | Place;
  readonly line: Line;
  readonly firstStepNumber: bigint;
  readonly ids: number[];
  /** The chain that must be stored before: it has the step to branch from. */
  readonly after: Chain | undefined;
}

/**
 * Decides where the programs of one version that are not stored yet go. A program follows its parent:
 *
 * - in the parent's trajectory, if the parent is the last step there and both are of one line (instance, process, task, model);
 * - else in a branch at the parent's step.
 *
 * A program whose parent is NULL, not in the source, or of another version or task begins after step 0 of the trajectory of its line: in that
 * trajectory if it is the first, else in a branch at step 0.
 *
 * The result depends only on the programs, on what is stored, and on `newId`, which returns the same id for the same name. Chains are in an
 * order in which each can be stored. Error: FleImportError if programs are their own ancestors.
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

/** The program to continue. A branch has the task of its parent, so a program of another task is not one. */
function parentOf({ parentId, line }: Program, programs: ReadonlyMap<number, Program>): Program | undefined {
  const parent = parentId === undefined ? undefined : programs.get(parentId);
  return parent?.line.taskKey === line.taskKey ? parent : undefined;
}

/** Every program after its parent, otherwise by id. */
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

/** The end of a trajectory as it will be when the chains so far are stored. */
interface End {
  nextStepNumber: bigint;
  readonly sealed: boolean;
  chain: Chain | undefined;
}

class Planner {
  readonly chains: Chain[] = [];
  readonly #newId: (name: string) => string;
  readonly #places: Map<number, Place>;
  readonly #ends: Map<string, End>;

  constructor({ trajectories, programs }: Stored, newId: (name: string) => string) {
    this.#newId = newId;
    this.#places = new Map(programs);
    this.#ends = new Map([...trajectories].map(([id, end]) => [id, { ...end, chain: undefined }]));
  }

  add(program: Program, parent: Program | undefined): void {
    const place = parent === undefined ? undefined : this.#places.get(parent.id);
    if (place === undefined) this.#addFirst(program);
    else this.#addAfter(program, place, parent?.line === program.line);
  }

  #addFirst(program: Program): void {
    const trajectoryId = this.#newId(`line ${program.line.key}`);
    if (!this.#ends.has(trajectoryId)) {
      this.#ends.set(trajectoryId, { nextStepNumber: 1n, sealed: false, chain: undefined });
      this.#append(program, trajectoryId, 'root', undefined);
    } else {
      this.#addAfter(program, { trajectoryId, stepNumber: 0n }, true);
    }
  }

  #addAfter(program: Program, place: Place, sameLine: boolean): void {
    const end = this.#ends.get(place.trajectoryId);
    if (sameLine && end !== undefined && !end.sealed && end.nextStepNumber === place.stepNumber + 1n) {
      this.#append(program, place.trajectoryId, 'exists', undefined);
    } else {
      this.#addToBranch(program, place, end?.chain);
    }
  }

  /** An import that was interrupted may have left the branch without a step. */
  #addToBranch(program: Program, place: Place, after: Chain | undefined): void {
    const branchId = this.#newId(`program ${program.id}`);
    const exists = this.#ends.has(branchId);
    if (!exists) {
      this.#ends.set(branchId, { nextStepNumber: place.stepNumber + 1n, sealed: false, chain: undefined });
    }
    this.#append(program, branchId, exists ? 'exists' : place, exists ? undefined : after);
  }

  #append(program: Program, trajectoryId: string, start: Chain['start'], after: Chain | undefined): void {
    const end = this.#ends.get(trajectoryId)!;
    if (end.chain === undefined) {
      const { line } = program;
      end.chain = { trajectoryId, start, line, firstStepNumber: end.nextStepNumber, ids: [], after };
      this.chains.push(end.chain);
    }
    end.chain.ids.push(program.id);
    this.#places.set(program.id, { trajectoryId, stepNumber: end.nextStepNumber });
    end.nextStepNumber += 1n;
  }
}
