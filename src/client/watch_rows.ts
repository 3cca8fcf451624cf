import { type DescMessage, equals, type MessageShape } from '@bufbuild/protobuf';
import type { WatchedSeries } from '../../gen/es/anabranch/v1/server_service_pb.js';

interface Row {
  readonly id: string;
  readonly revision: bigint;
}

/** The newest known revision of each row of one type (rule M5). */
export class Rows<D extends DescMessage, T extends MessageShape<D> & Row> {
  readonly #schema: D;
  #all = new Map<string, T>();
  #fresh = new Map<string, T>();

  constructor(schema: D) {
    this.#schema = schema;
  }

  /** Rows by id. A map that was returned does not change later. */
  get all(): ReadonlyMap<string, T> {
    return this.#all;
  }

  /** Whether a row was taken since the last takeFresh(). */
  get changed(): boolean {
    return this.#fresh.size > 0;
  }

  /** Derived values can change without the revision: the turns of a live rollout, the statistics of a group. */
  take(row: T): void {
    const known = this.#all.get(row.id);
    if (known !== undefined && (row.revision < known.revision || equals(this.#schema, known, row))) return;
    if (this.#fresh.size === 0) this.#all = new Map(this.#all);
    this.#all.set(row.id, row);
    this.#fresh.set(row.id, row);
  }

  /** Returns the rows that are new or changed since the last call. */
  takeFresh(): T[] {
    const fresh = [...this.#fresh.values()];
    this.#fresh = new Map();
    return fresh;
  }
}

/** The last message about each metric series. They have no revision: the server sends them in order. */
export class KnownSeries {
  #all = new Map<string, WatchedSeries>();
  #fresh = new Map<string, WatchedSeries>();

  /** Series by id. A map that was returned does not change later. */
  get all(): ReadonlyMap<string, WatchedSeries> {
    return this.#all;
  }

  /** Whether a series was taken since the last takeFresh(). */
  get changed(): boolean {
    return this.#fresh.size > 0;
  }

  take(id: string, series: WatchedSeries): void {
    const untaken = this.#fresh.get(id);
    const isLower = untaken === undefined || series.changedFrom <= untaken.changedFrom;
    if (this.#fresh.size === 0) this.#all = new Map(this.#all);
    this.#all.set(id, series);
    this.#fresh.set(id, isLower ? series : { ...series, changedFrom: untaken.changedFrom });
  }

  /** Returns the series that were sent since the last call, each with the lowest step that may have changed. */
  takeFresh(): WatchedSeries[] {
    const fresh = [...this.#fresh.values()];
    this.#fresh = new Map();
    return fresh;
  }
}
