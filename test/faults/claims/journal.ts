/** Reports of workers, a JSON line each, before and after each action. */

/**
 * The message with which a worker releases a rollout: it distinguishes such an attempt from one whose lease expired.
 */
export const GIVEN_BACK = 'given back';

/** An attempt: the token of a lease (Q2). */
export interface Token {
  readonly rollout: string;
  readonly attempt: number;
}

export type Entry =
  /** The answer to a claim has arrived. */
  | (Token & { readonly what: 'claimed'; readonly worker: string; readonly trajectory: string })
  /** All its turns are acked; completion may start, and may never be answered. */
  | (Token & { readonly what: 'completing'; readonly worker: string; readonly steps: number })
  | (Token & { readonly what: 'completed'; readonly worker: string })
  | (Token & { readonly what: 'released'; readonly worker: string })
  /** Refused with LEASE_LOST. */
  | (Token & { readonly what: 'lost'; readonly worker: string })
  /** Errors that no fault explains. */
  | { readonly what: 'surprise'; readonly worker: string; readonly text: string };

export function tokenName({ rollout, attempt }: Token): string {
  return `${rollout}/${attempt}`;
}

/** What an attempt writes into its n-th step, so that a step in another's trajectory is detected. */
export function stepMark(token: Token, stepNumber: bigint | number): string {
  return JSON.stringify({ mark: `${tokenName(token)}/${stepNumber}` });
}

/** Entries in order of arrival, of processes that may have ended by now. */
export class Journal {
  readonly entries: Entry[] = [];
  readonly #outcomes = new Map<string, Entry['what']>();
  #completed = 0;

  add(entry: Entry): void {
    this.entries.push(entry);
    if (entry.what === 'surprise' || entry.what === 'claimed' || entry.what === 'completing') return;
    this.#outcomes.set(tokenName(entry), entry.what);
    if (entry.what === 'completed') this.#completed += 1;
  }

  get completed(): number {
    return this.#completed;
  }

  outcomeOf(token: Token): Entry['what'] | undefined {
    return this.#outcomes.get(tokenName(token));
  }

  /** Rollouts that workers with these names claimed and whose end they have not reported. */
  heldBy(isOurs: (worker: string) => boolean): Token[] {
    return this.of('claimed').filter((entry) => isOurs(entry.worker) && this.outcomeOf(entry) === undefined);
  }

  of<What extends Entry['what']>(what: What): Extract<Entry, { what: What }>[] {
    return this.entries.filter((entry) => entry.what === what) as Extract<Entry, { what: What }>[];
  }
}
