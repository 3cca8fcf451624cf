import { AnabranchError } from '../domain/errors.ts';

/** The limits of one principal. */
export type PrincipalLimits = Readonly<
  Record<'streamsPerPrincipal' | 'followersPerPrincipal' | 'watchersPerPrincipal', number>
>;

/** What one principal does at once, with all its keys. */
export class PrincipalLoad {
  readonly #limits: PrincipalLimits;
  /** Bytes of its steps that wait to be stored (`WaitingSteps`). */
  waitingBytes = 0;
  readonly #counts = { streamsPerPrincipal: 0, followersPerPrincipal: 0, watchersPerPrincipal: 0 };

  constructor(limits: PrincipalLimits) {
    this.#limits = limits;
  }

  get streams(): number {
    return this.#counts.streamsPerPrincipal;
  }

  /** Counts one more. Returns a function that discounts it, to be called once. Errors: CALLER_LIMIT. */
  enter(limit: keyof PrincipalLimits): () => void {
    if (this.#counts[limit] >= this.#limits[limit]) throw callerLimit(limit, this.#limits[limit]);
    this.#counts[limit] += 1;
    return () => {
      this.#counts[limit] -= 1;
    };
  }
}

/** The loads of principals with open calls. */
export class Principals {
  readonly #limits: PrincipalLimits;
  readonly #loads = new Map<string, PrincipalLoad>();

  constructor(limits: PrincipalLimits) {
    this.#limits = limits;
  }

  /** Number of principals with open calls. */
  get size(): number {
    return this.#loads.size;
  }

  /** Counts a call. `leave` discounts it, and must be called once. Errors: CALLER_LIMIT. */
  enter(name: string): { readonly load: PrincipalLoad; readonly leave: () => void } {
    const load = this.#loads.get(name) ?? new PrincipalLoad(this.#limits);
    const discount = load.enter('streamsPerPrincipal');
    if (load.streams === 1) this.#loads.set(name, load);
    const leave = () => {
      discount();
      if (load.streams === 0) this.#loads.delete(name);
    };
    return { load, leave };
  }
}

const WHAT: Readonly<Record<keyof PrincipalLimits, string>> = {
  streamsPerPrincipal: 'calls in progress',
  followersPerPrincipal: 'reads with follow',
  watchersPerPrincipal: 'watched subjects',
};

function callerLimit(limit: keyof PrincipalLimits, most: number): AnabranchError {
  return new AnabranchError(
    'CALLER_LIMIT',
    `The principal has ${most} ${WHAT[limit]}, which is the limit ${limit}. Nothing was done. End some of them, or retry later.`,
    { metadata: { limit, most: `${most}` } },
  );
}
