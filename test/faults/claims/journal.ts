/** What workers say of themselves, a JSON line each, before and after they act. */

/** What a worker says when it gives a rollout back: how such an attempt is known from one whose lease ran out. */
export const GIVEN_BACK = 'given back';

/** An attempt: the token of a lease (Q2). */
export interface Token {
  readonly rollout: string;
  readonly attempt: number;
}

export type Entry =
  /** The answer to a claim is here. */
  | (Token & { readonly what: 'claimed'; readonly worker: string; readonly trajectory: string })
  /** All its turns are acked; completing it may begin, and may never be answered. */
  | (Token & { readonly what: 'completing'; readonly worker: string; readonly steps: number })
  | (Token & { readonly what: 'completed'; readonly worker: string })
  | (Token & { readonly what: 'released'; readonly worker: string })
  /** Refused with LEASE_LOST. */
  | (Token & { readonly what: 'lost'; readonly worker: string })
  /** What no harm explains. */
  | { readonly what: 'surprise'; readonly worker: string; readonly text: string };

export function tokenName({ rollout, attempt }: Token): string {
  return `${rollout}/${attempt}`;
}

/** What an attempt writes into its n-th step, so that a step in another's trajectory is seen. */
export function stepMark(token: Token, stepNumber: bigint | number): string {
  return JSON.stringify({ mark: `${tokenName(token)}/${stepNumber}` });
}

/** Entries in the order in which they were heard, of processes that may be gone by now. */
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

  /** What workers of these names claimed and have not told the end of. */
  heldBy(isOurs: (worker: string) => boolean): Token[] {
    return this.of('claimed').filter((entry) => isOurs(entry.worker) && this.outcomeOf(entry) === undefined);
  }

  of<What extends Entry['what']>(what: What): Extract<Entry, { what: What }>[] {
    return this.entries.filter((entry) => entry.what === what) as Extract<Entry, { what: What }>[];
  }
}
