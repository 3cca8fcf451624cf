import type { SealRequest, StepTag, WriterRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import type { NewSteps } from '../../domain/step_codec/packed_step.ts';
import type { AppendBatch } from '../../store/contract/append.ts';
import type { App } from '../app.ts';
import type { BatchSource, Committed } from './committer.ts';

/** What a unary call writes to one trajectory: steps, a seal, or both (W8, W14). */
export interface NewEntry extends NewSteps {
  readonly trajectoryId: string;
  /** Optional. If it is set, the trajectory must have this uid. */
  readonly uid: string | undefined;
  /** If unset, the write is accepted only if no writer has ever opened the trajectory. */
  readonly writerEpoch: bigint | undefined;
  /** If set, this writer is granted an epoch, and `writerEpoch` is ignored. */
  readonly writer?: WriterRequest | undefined;
  readonly tags: readonly StepTag[];
  readonly seal: SealRequest | undefined;
}

export type EntryOutcome = Committed | { readonly kind: 'failed'; readonly error: unknown };

/**
 * W14: commits entries in the next group commits, and resolves when all are durable or have failed. Entries of one
 * trajectory are applied in order. After `lockWaitMs`, an entry whose trajectory another transaction holds fails with
 * DATABASE_UNAVAILABLE. Without it, entries wait as long as the store does.
 */
export async function commitEntries(
  app: App,
  caller: Caller,
  entries: readonly NewEntry[],
  lockWaitMs?: number,
): Promise<EntryOutcome[]> {
  if (entries.length === 0) return [];
  const ids = [...new Set(entries.map(({ trajectoryId }) => trajectoryId))];
  const refs = await app.store.findTrajectories(caller.namespace, ids);
  app.call.signal.throwIfAborted();
  const source = new EntrySource(app.call.signal, entries.length, lockWaitMs);
  for (const [i, { writerEpoch, writer, ...entry }] of entries.entries()) {
    const ref = refs.get(entry.trajectoryId);
    if (ref === undefined) source.settle(i, { kind: 'failed', error: trajectoryNotFound(entry.trajectoryId) });
    else {
      const batch = { ...entry, caller, ref, writerEpoch, writer, independent: true };
      app.committer.submit(source, source.add(i, batch), bytesOf(entry));
    }
  }
  return source.outcomes;
}

/** W8: commits one entry. Errors: as AppendSteps. */
export async function commitEntry(app: App, caller: Caller, entry: NewEntry): Promise<Committed> {
  const [outcome] = await commitEntries(app, caller, [entry]);
  if (outcome?.kind !== 'committed') throw outcome?.error;
  return outcome;
}

/** Size of an entry, for the bounds of a group. */
function bytesOf({ steps, states }: NewSteps): number {
  const bytes = steps.reduce((sum, step) => sum + step.bytes.length, 0);
  return states.reduce((sum, { data }) => sum + data.length, bytes);
}

/** The entries of a call. They are dropped if the caller disconnects before their group begins, but not later. */
class EntrySource implements BatchSource {
  over = false;
  readonly lockWaitMs: number | undefined;
  readonly outcomes: Promise<EntryOutcome[]>;
  readonly #signal: AbortSignal;
  readonly #places = new Map<AppendBatch, number>();
  readonly #settled: EntryOutcome[];
  readonly #resolve: (outcomes: EntryOutcome[]) => void;
  readonly #reject: (error: unknown) => void;
  #left: number;

  constructor(signal: AbortSignal, count: number, lockWaitMs: number | undefined) {
    const { promise, resolve, reject } = Promise.withResolvers<EntryOutcome[]>();
    this.outcomes = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#settled = new Array(count);
    this.#left = count;
    this.#signal = signal;
    this.lockWaitMs = lockWaitMs;
    signal.addEventListener('abort', this.#leave);
  }

  add(place: number, batch: AppendBatch): AppendBatch {
    this.#places.set(batch, place);
    return batch;
  }

  committed(batch: AppendBatch, _bytes: number, outcome: Committed): void {
    this.settle(this.#places.get(batch)!, outcome);
  }

  failed(batch: AppendBatch, _bytes: number, error: unknown): void {
    this.settle(this.#places.get(batch)!, { kind: 'failed', error });
  }

  settle(place: number, outcome: EntryOutcome): void {
    this.#settled[place] = outcome;
    this.#left -= 1;
    if (this.#left > 0) return;
    this.#signal.removeEventListener('abort', this.#leave);
    this.#resolve(this.#settled);
  }

  readonly #leave = (): void => {
    this.over = true;
    this.#reject(this.#signal.reason);
  };
}
