import type { StretchExtrema } from '../sql/engine.ts';
import type { Stretch } from '../sql/stretches.ts';

/** What a read thread can be asked for. Everything in it is copied from thread to thread. */
export type ReadJob = StatementJob | SnapshotJob | StretchesJob;

/** The rows of one statement: as objects with bigints, or as arrays with whole numbers as numbers. */
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

/** The extrema of some stretches of a metric series, which take several statements each. */
export interface StretchesJob {
  readonly kind: 'stretches';
  readonly series: bigint;
  readonly stretches: readonly Stretch[];
}

export type ReadResult<Job extends ReadJob> = Job extends StretchesJob
  ? StretchExtrema[]
  : Job extends SnapshotJob
    ? ReadRows[]
    : unknown[];

/** Rows as arrays, with the keys for objects. */
export interface ReadRows {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
}

/** Sent to the thread. A job is cancelled by writing its id into the shared `cancelled` cell. */
export interface ReadRequest {
  readonly id: number;
  readonly job: ReadJob;
}

/** Sent back by the thread. */
export interface ReadReply {
  /** How long the job took on the thread. */
  readonly milliseconds: number;
  /** Rows as arrays, also where objects are wanted: their keys would be copied with every row. */
  readonly result?: unknown[];
  /** The keys, where objects are wanted. */
  readonly columns?: readonly string[];
  readonly error?: ReadFailure;
}

/** An error, as far as it survives the way between two threads. */
export interface ReadFailure {
  readonly message: string;
  readonly stack: string | undefined;
  readonly code: unknown;
  readonly errcode: unknown;
}

export interface ReadThreadOptions {
  readonly path: string;
  /** One Int32 cell: the id of the job to cancel. */
  readonly cancelled: SharedArrayBuffer;
}
