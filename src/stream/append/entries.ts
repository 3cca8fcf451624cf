import { type SealRequest, type StepTag, trajectoryLocked, type WriterRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, trajectoryNotFound } from '../../domain/errors.ts';
import { type NewSteps, PACKED_STEP_BYTES } from '../../domain/step_codec/packed_step.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { AppendBatch } from '../../store/contract/append.ts';
import { type CallScope, Contended, isOutage } from '../../store/contract/store.ts';
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
  app.waiting.add(bytes, app.load);
  return commit(app, caller, given, lockWaitMs).finally(() => app.waiting.add(-bytes, app.load));
}

async function commit(
  app: App,
  caller: Caller,
  given: readonly (NewEntry | FailedEntry)[],
  lockWaitMs?: number,
): Promise<EntryOutcome[]> {
  const source = new EntrySource(app.call, given.length, lockWaitMs);
  const call: EntryCall = { app, caller, source, missed: [], resubmitted: Promise.resolve() };
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
  /** Entries whose trajectories were not found by the row keys that the store knew. */
  readonly missed: Placed[];
  /** Resolves when all of those so far are submitted again. */
  resubmitted: Promise<void>;
}

/** Hands entries of trajectories that exist to the committer. */
async function submit(call: EntryCall, placed: readonly Placed[]): Promise<void> {
  const { app, caller } = call;
  const unknown: Placed[] = [];
  for (const each of placed) {
    const ref = app.store.knownTrajectoryRef(caller.namespace, each.entry.trajectoryId);
    if (ref === undefined) unknown.push(each);
    else submitTo(call, ref, each, () => resubmit(call, each));
  }
  if (unknown.length > 0) await lookUp(call, unknown);
}

/** Submits entries after a look at the database. Keeps the order of those of one trajectory. */
async function lookUp(call: EntryCall, placed: readonly Placed[]): Promise<void> {
  const { app, caller, source } = call;
  const ids = new Set(placed.map(({ entry }) => entry.trajectoryId));
  const refs = await app.store.findTrajectoryRefs(caller.namespace, [...ids]);
  for (const each of placed) {
    const ref = refs.get(each.entry.trajectoryId);
    if (ref === undefined) source.settle(each.place, failed(trajectoryNotFound(each.entry.trajectoryId)));
    else submitTo(call, ref, each);
  }
}

/** `missed` is called instead of a failure because the trajectory does not exist. */
function submitTo(call: EntryCall, ref: TrajectoryRef, { place, entry }: Placed, missed?: () => void): void {
  const { app, caller, source } = call;
  app.committer.submit(source, source.add(place, { ...entry, caller, ref, independent: true }, missed), bytesOf(entry));
}

/** The next turn looks up together what one group has missed. */
function resubmit(call: EntryCall, placed: Placed): void {
  call.missed.push(placed);
  if (call.missed.length > 1) return;
  call.resubmitted = call.resubmitted.then(async () => {
    const missed = call.missed.splice(0);
    await lookUp(call, missed).catch((error) => {
      for (const { place } of missed) call.source.settle(place, failed(error));
    });
  });
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

function isNotFound(error: unknown): boolean {
  return error instanceof AnabranchError && error.reason === 'TRAJECTORY_NOT_FOUND';
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
  readonly trace: BatchSource['trace'];
  readonly outcomes: Promise<EntryOutcome[]>;
  readonly #signal: AbortSignal;
  readonly #places = new Map<AppendBatch, number>();
  readonly #missed = new Map<AppendBatch, () => void>();
  readonly #settled: EntryOutcome[];
  readonly #resolve: (outcomes: EntryOutcome[]) => void;
  readonly #reject: (error: unknown) => void;
  #left: number;

  constructor({ signal, trace }: CallScope, count: number, lockWaitMs: number | undefined) {
    this.trace = trace;
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

  /** `missed` is called instead of a failure of the batch because its trajectory does not exist. */
  add(place: number, batch: AppendBatch, missed?: () => void): AppendBatch {
    this.#places.set(batch, place);
    if (missed !== undefined) this.#missed.set(batch, missed);
    return batch;
  }

  committed(batch: AppendBatch, _bytes: number, outcome: Committed): void {
    this.settle(this.#places.get(batch)!, outcome);
  }

  failed(batch: AppendBatch, _bytes: number, error: unknown): void {
    const missed = this.#missed.get(batch);
    if (missed !== undefined && isNotFound(error)) missed();
    else this.settle(this.#places.get(batch)!, failed(error));
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
