import type { RangeExtrema, SeriesRange } from '../sql/records/metric/points.ts';

/** What a read thread can be asked for. Everything in it is copied from thread to thread. */
export type ReadJob = StatementJob | SnapshotJob | ExtremaJob;

/** Reads the rows of one statement: as objects with bigints, or as arrays with integers as numbers. */
export interface StatementJob {
  readonly kind: 'objects' | 'arrays';
  readonly text: string;
  readonly parameters: readonly unknown[];
}

/** The rows of several statements, as objects with bigints. All statements run in one read transaction. */
export interface SnapshotJob {
  readonly kind: 'snapshot';
  readonly statements: readonly Pick<StatementJob, 'text' | 'parameters'>[];
}

/** The extrema of some ranges of a metric series, which take several statements each. */
export interface ExtremaJob {
  readonly kind: 'extrema';
  readonly series: bigint;
  readonly ranges: readonly SeriesRange[];
}

export type ReadResult<Job extends ReadJob> = Job extends ExtremaJob
  ? RangeExtrema[]
  : Job extends SnapshotJob
    ? ReadRows[]
    : unknown[];

/** Rows as arrays, with the keys for objects. */
export interface ReadRows {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
}

/** Message to the thread. Writing the id into the shared `cancelled` cell cancels the job. */
export interface ReadRequest {
  readonly id: number;
  readonly job: ReadJob;
}

/** Answer of the thread. */
export interface ReadReply {
  /** Run time of the job on the thread. */
  readonly milliseconds: number;
  /** Rows as arrays, even if objects are requested, because their keys would be copied with every row. */
  readonly result?: unknown[];
  /** Keys of the objects, if objects are requested. */
  readonly columns?: readonly string[];
  readonly error?: ReadFailure;
}

/** Fields of an error that can be copied between threads. */
export interface ReadFailure {
  readonly message: string;
  readonly stack: string | undefined;
  readonly code: unknown;
  readonly errcode: unknown;
}

export interface ReadThreadOptions {
  readonly path: string;
  /** One Int32 cell with the id of the job to cancel. */
  readonly cancelled: SharedArrayBuffer;
}
