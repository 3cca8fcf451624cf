import { type DescMessage, equals, type MessageShape } from '@bufbuild/protobuf';

interface Row {
  readonly id: string;
  readonly revision: bigint;
}

/** The rows of one noun as far as they were told: of each the newest revision (rule M5). */
export class Rows<D extends DescMessage, T extends MessageShape<D> & Row> {
  readonly #schema: D;
  #all = new Map<string, T>();
  #fresh = new Map<string, T>();

  constructor(schema: D) {
    this.#schema = schema;
  }

  /** By id. What was given out stays as it is. */
  get all(): ReadonlyMap<string, T> {
    return this.#all;
  }

  /** Something was taken since the last takeFresh(). */
  get changed(): boolean {
    return this.#fresh.size > 0;
  }

  /** One revision may come with other derived values: the turns of a rollout that goes on, the statistics of a group. */
  take(row: T): void {
    const known = this.#all.get(row.id);
    if (known !== undefined && (row.revision < known.revision || equals(this.#schema, known, row))) return;
    if (this.#fresh.size === 0) this.#all = new Map(this.#all);
    this.#all.set(row.id, row);
    this.#fresh.set(row.id, row);
  }

  /** Those that are new or changed since the last time. */
  takeFresh(): T[] {
    const fresh = [...this.#fresh.values()];
    this.#fresh = new Map();
    return fresh;
  }
}
