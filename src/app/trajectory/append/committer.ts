import type { AppendBatch, AppendOutcome } from '../../../store/contract/append.ts';

/** Where batches come from: one append stream, or one unary call. Its batches are committed in order; after a failure the rest is dropped. */
export interface BatchSource {
  /** Nothing more of it is to be committed. */
  readonly over: boolean;
  /** Durable, and to be called in order. */
  committed(batch: AppendBatch, bytes: number, outcome: Extract<AppendOutcome, { kind: 'committed' }>): void;
  /** Refused, or the whole group failed. From here on the source must be `over`. */
  failed(batch: AppendBatch, bytes: number, error: unknown): void;
}

/** W7: takes what has arrived from all streams and commits it together, at once when idle. */
export interface Committer {
  submit(source: BatchSource, batch: AppendBatch, bytes: number): void;
  /** Resolves when nothing waits and nothing is in flight. */
  idle(): Promise<void>;
  /** Batches that wait or are in flight. */
  readonly pending: number;
}
