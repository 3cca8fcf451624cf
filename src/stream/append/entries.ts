import { type SealRequest, type StepTag, trajectoryLocked, type WriterRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import { type NewSteps, PACKED_STEP_BYTES } from '../../domain/step_codec/packed_step.ts';
import type { AppendBatch } from '../../store/contract/append.ts';
import { Contended, isOutage } from '../../store/contract/store.ts';
import type { TrajectoryCreation } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import { type BatchSource, type Committed, LOCK_RETRY_MS } from './committer.ts';

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
 * `lockWaitMs`, an entry whose trajectory another transaction holds fails with DATABASE_UNAVAILABLE. Without it,
 * entries wait as long as the store does.
 */
export async function commitEntries(
  app: App,
  caller: Caller,
  given: readonly (NewEntry | FailedEntry)[],
  lockWaitMs?: number,
): Promise<EntryOutcome[]> {
  if (given.length === 0) return [];
  app.call.signal.throwIfAborted();
  const bytes = given.reduce((sum, entry) => sum + ('kind' in entry ? 0 : memoryOf(entry)), 0);
  app.waiting.add(bytes);
  return commit(app, caller, given, lockWaitMs).finally(() => app.waiting.add(-bytes));
}

async function commit(
  app: App,
  caller: Caller,
  given: readonly (NewEntry | FailedEntry)[],
  lockWaitMs?: number,
): Promise<EntryOutcome[]> {
  const call = { app, caller, source: new EntrySource(app.call.signal, given.length, lockWaitMs) };
  const placed: Placed[] = [];
  const created = new Set<string>();
  for (const [place, entry] of given.entries()) {
    if ('kind' in entry) {
      call.source.settle(place, entry);
      continue;
    }
    placed.push({ place, entry });
    if (entry.create !== undefined) created.add(entry.trajectoryId);
  }
  const isCreated = ({ entry }: Placed) => created.has(entry.trajectoryId);
  await submit(call, created.size === 0 ? placed : placed.filter((each) => !isCreated(each)));
  if (created.size > 0) await submit(call, await create(call, placed.filter(isCreated)));
  return call.source.outcomes;
}

interface Placed {
  readonly place: number;
  readonly entry: NewEntry;
}

interface EntryCall {
  readonly app: App;
  readonly caller: Caller;
  readonly source: EntrySource;
}

/** Hands entries of trajectories that exist to the committer. */
async function submit({ app, caller, source }: EntryCall, placed: readonly Placed[]): Promise<void> {
  if (placed.length === 0) return;
  const ids = new Set(placed.map(({ entry }) => entry.trajectoryId));
  const refs = await app.store.findTrajectoryRefs(caller.namespace, [...ids]);
  for (const { place, entry } of placed) {
    const ref = refs.get(entry.trajectoryId);
    if (ref === undefined) source.settle(place, failed(trajectoryNotFound(entry.trajectoryId)));
    else app.committer.submit(source, source.add(place, { ...entry, caller, ref, independent: true }), bytesOf(entry));
  }
}

/** Bounds the search for entries that wait for locks: each transaction waits once. */
const MOST_WAITS = 20;

/**
 * Commits the entries that create their trajectory, each completely or not at all. Returns the other ones, in order:
 * those whose trajectory exists, and those without `create`.
 */
async function create(call: EntryCall, placed: readonly Placed[]): Promise<readonly Placed[]> {
  const { source } = call;
  const { lockWaitMs = 0 } = source;
  const begin = performance.now();
  const left = placed.filter(({ entry }) => entry.create === undefined);
  let waiting = placed.filter(({ entry }) => entry.create !== undefined);
  while (waiting.length > 0 && !source.over) {
    const outcomes = await createTogether(call, waiting, begin + MOST_WAITS * lockWaitMs);
    const isOver = performance.now() >= begin + lockWaitMs;
    const locked: Placed[] = [];
    for (const [i, each] of waiting.entries()) {
      const outcome = outcomes[i]!;
      if (outcome === 'exists') left.push(each);
      else if (outcome !== 'locked') source.settle(each.place, outcome);
      else if (isOver) source.settle(each.place, failed(trajectoryLocked(each.entry.trajectoryId, lockWaitMs)));
      else locked.push(each);
    }
    waiting = locked;
    if (locked.length > 0) await new Promise((resolve) => setTimeout(resolve, LOCK_RETRY_MS));
  }
  return left.sort((a, b) => a.place - b.place);
}

/**
 * Commits entries that create their trajectory in one transaction if none fails. Otherwise, commits each half of them.
 * Entries that wait for locks are `locked`; after `end` also the ones beside them.
 */
async function createTogether(
  call: EntryCall,
  placed: readonly Placed[],
  end: number,
): Promise<(EntryOutcome | 'exists' | 'locked')[]> {
  const batches = placed.map(({ entry }) => ({ ...entry, create: entry.create!, caller: call.caller }));
  try {
    const outcomes = await call.app.store.appendToNew(batches);
    return outcomes.map((outcome) => (outcome?.kind === 'committed' ? outcome : 'exists'));
  } catch (error) {
    const isLocked = error instanceof Contended && (placed.length === 1 || performance.now() >= end);
    if (isLocked) return placed.map(() => 'locked');
    if (placed.length === 1 || isOutage(error)) return placed.map(() => failed(error));
  }
  const half = Math.ceil(placed.length / 2);
  const first = await createTogether(call, placed.slice(0, half), end);
  return [...first, ...(await createTogether(call, placed.slice(half), end))];
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

function memoryOf(entry: NewEntry): number {
  return bytesOf(entry) + PACKED_STEP_BYTES * entry.steps.length;
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
    this.outcomes.catch(() => undefined); // rethrown when it is awaited, unless the entries cannot be submitted
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
