import type { WatchEvent, WatchSource } from './stream.ts';

interface Begun {
  readonly remove: () => void;
  /** Passes on what has come so far, and what comes from now on. */
  readonly pass: (listener: (event: WatchEvent) => void) => void;
}

/** A source of watches, some of which have begun before anybody asked for them. */
export class EarlySource implements WatchSource {
  readonly #source: WatchSource;
  readonly #begun: Map<string, Begun>;

  constructor(source: WatchSource, subjects: readonly Uint8Array[]) {
    this.#source = source;
    this.#begun = new Map(subjects.map((subject) => [subject.join(), begin(source, subject)]));
  }

  add(subject: Uint8Array, listener: (event: WatchEvent) => void): () => void {
    const begun = this.#begun.get(subject.join());
    if (begun === undefined) return this.#source.add(subject, listener);
    this.#begun.delete(subject.join());
    begun.pass(listener);
    return begun.remove;
  }

  /** Ends the watches that have no listener. */
  drop(): void {
    for (const { remove } of this.#begun.values()) remove();
    this.#begun.clear();
  }
}

function begin(source: WatchSource, subject: Uint8Array): Begun {
  const kept: WatchEvent[] = [];
  let tell = (event: WatchEvent) => {
    // What came before a snapshot is part of it.
    if (event.kind === 'begin') kept.length = 0;
    kept.push(event);
  };
  const remove = source.add(subject, (event) => tell(event));
  const pass: Begun['pass'] = (listener) => {
    tell = listener;
    for (const event of kept) listener(event);
  };
  return { remove, pass };
}
