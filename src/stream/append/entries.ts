import type { SealRequest, StepTag, WriterRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import type { NewSteps } from '../../domain/step_codec/packed_step.ts';
import type { AppendBatch } from '../../store/contract/append.ts';
import { isOutage } from '../../store/contract/store.ts';
import type { TrajectoryCreation } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import type { BatchSource, Committed } from './committer.ts';

/** What a unary call writes to one trajectory (W8, W14). */
export interface NewEntry extends NewSteps {
  readonly trajectoryId: string;
  /** Creates the trajectory if it does not exist. */
  readonly create?: TrajectoryCreation | undefined;
  /** Optional. If it is set, the trajectory must have this uid. */
  readonly uid: string | undefined;
  /** If unset, the write is accepted only if no writer has ever opened the trajectory. */
  readonly writerEpoch: bigint | undefined;
  /** If set, this writer is granted an epoch, and `writerEpoch` is ignored. */
  readonly writer?: WriterRequest | undefined;
  readonly tags: readonly StepTag[];
  readonly seal: SealRequest | undefined;
}

export interface FailedEntry {
  readonly kind: 'failed';
  readonly error: unknown;
}

export type EntryOutcome = Committed | FailedEntry;

/**
 * W14: commits entries in the next group commits, and resolves when all are durable or have failed, with an outcome for
 * each entry; those that have failed already are passed on. Entries of one trajectory are applied in order. After
 * `lockWaitMs`, an entry whose trajectory another transaction holds fails with DATABASE_UNAVAILABLE. Without it, entries
 * wait as long as the store does.
 */
export async function commitEntries(
  app: App,
  caller: Caller,
  given: readonly (NewEntry | FailedEntry)[],
  lockWaitMs?: number,
): Promise<EntryOutcome[]> {
  if (given.length === 0) return [];
  const entries = await createMissing(app, caller, given);
  const ids = new Set(entries.flatMap((entry) => ('kind' in entry ? [] : entry.trajectoryId)));
  const refs = await app.store.findTrajectoryRefs(caller.namespace, [...ids]);
  app.call.signal.throwIfAborted();
  const source = new EntrySource(app.call.signal, entries.length, lockWaitMs);
  for (const [i, entry] of entries.entries()) {
    const ref = 'kind' in entry ? undefined : refs.get(entry.trajectoryId);
    if ('kind' in entry) source.settle(i, entry);
    else if (ref === undefined) source.settle(i, failed(trajectoryNotFound(entry.trajectoryId)));
    else app.committer.submit(source, source.add(i, { ...entry, caller, ref, independent: true }), bytesOf(entry));
  }
  return source.outcomes;
}

/**
 * Creates the trajectories of entries that do not exist, in one transaction if none fails. Otherwise, creates each half
 * of them. Returns the entries; those whose creation failed have failed.
 */
async function createMissing(
  app: App,
  caller: Caller,
  entries: readonly (NewEntry | FailedEntry)[],
): Promise<readonly (NewEntry | FailedEntry)[]> {
  const creations = entries.flatMap((entry) => ('kind' in entry ? [] : (entry.create ?? [])));
  if (creations.length === 0) return entries;
  app.call.signal.throwIfAborted();
  try {
    await app.store.createMissing(caller, creations);
    return entries;
  } catch (error) {
    if (creations.length === 1 || isOutage(error)) {
      return entries.map((entry) => ('create' in entry && entry.create !== undefined ? failed(error) : entry));
    }
  }
  const half = Math.ceil(entries.length / 2);
  const first = await createMissing(app, caller, entries.slice(0, half));
  return [...first, ...(await createMissing(app, caller, entries.slice(half)))];
}

function failed(error: unknown): FailedEntry {
  return { kind: 'failed', error };
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
    this.settle(this.#places.get(batch)!, failed(error));
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
