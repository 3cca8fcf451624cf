/** An item that waits. */
export interface Waiting<T> {
  readonly item: T;
}

/** A place in a line. */
interface Place<T> extends Waiting<T> {
  /** Undefined: the item waits no longer. */
  line: Line<T> | undefined;
  before: Place<T> | undefined;
  after: Place<T> | undefined;
}

/** The items of one key, in order of arrival. */
interface Line<T> {
  readonly key: string;
  first: Place<T> | undefined;
  last: Place<T> | undefined;
}

/**
 * Items that wait: those of one key in order of arrival, and the keys in turn. However many items a key has, each of
 * them waits for one item of every other key at most. With one key, this is a plain queue, and costs as much.
 */
export class InTurn<T> {
  /** In order of their turns. None is empty. */
  readonly #lines = new Map<string, Line<T>>();
  /** The line of the newest item. Most often it is that of the next one, too. */
  #latest: Line<T> | undefined;
  #size = 0;

  /** Number of items. */
  get size(): number {
    return this.#size;
  }

  add(key: string, item: T): Waiting<T> {
    const line = this.#latest?.key === key ? this.#latest : this.#lineOf(key);
    const place: Place<T> = { item, line, before: line.last, after: undefined };
    if (line.last === undefined) line.first = place;
    else line.last.after = place;
    line.last = place;
    this.#latest = line;
    this.#size += 1;
    return place;
  }

  /** Like `add`, but before the other items of its key. */
  addFirst(key: string, item: T): Waiting<T> {
    const line = this.#lineOf(key);
    const place: Place<T> = { item, line, before: undefined, after: line.first };
    if (line.first === undefined) line.last = place;
    else line.first.before = place;
    line.first = place;
    this.#size += 1;
    return place;
  }

  /** Returns the item whose turn it is, of those that fit. It waits until it is served or deleted. */
  next(fits?: (item: T) => boolean): Waiting<T> | undefined {
    for (const { first } of this.#lines.values()) {
      for (let place = first; place !== undefined; place = place.after) {
        if (fits === undefined || fits(place.item)) return place;
      }
    }
    return undefined;
  }

  /** Removes an item, and ends the turn of its key. */
  serve(waiting: Waiting<T>): void {
    const { line } = waiting as Place<T>;
    if (!this.delete(waiting) || line?.first === undefined || this.#lines.size === 1) return;
    this.#lines.delete(line.key);
    this.#lines.set(line.key, line);
  }

  /** Removes an item that has left. Returns false if it does not wait. */
  delete(waiting: Waiting<T>): boolean {
    const place = waiting as Place<T>;
    const { line, before, after } = place;
    if (line === undefined) return false;
    if (before === undefined) line.first = after;
    else before.after = after;
    if (after === undefined) line.last = before;
    else after.before = before;
    place.line = undefined;
    this.#size -= 1;
    if (line.first === undefined) this.#close(line);
    return true;
  }

  /** Removes all items, and returns them in the order in which they would have been served. */
  clear(): T[] {
    const all: T[] = [];
    for (let waiting = this.next(); waiting !== undefined; waiting = this.next()) {
      all.push(waiting.item);
      this.serve(waiting);
    }
    return all;
  }

  #lineOf(key: string): Line<T> {
    let line = this.#lines.get(key);
    if (line === undefined) {
      line = { key, first: undefined, last: undefined };
      this.#lines.set(key, line);
    }
    return line;
  }

  #close(line: Line<T>): void {
    this.#lines.delete(line.key);
    if (this.#latest === line) this.#latest = undefined;
  }
}
