import { decideAppend, type Head } from '../../../../domain/append.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import { isSealed } from '../../../../domain/lifecycle.ts';
import { rowStates } from '../../../../domain/step_codec/packed_step.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { LockedHead } from '../../kit/engine.ts';
import type { Sums } from '../../kit/running_sums.ts';
import type { AppendsEngine, SeenAppend } from '../engine.ts';
import { type CompressedSegments, compressedByTrajectory, withCompressedSteps } from './compressed_segments.ts';
import { headOf } from './heads.ts';
import { SegmentBuilder, StepEncoder } from './segment_builder.ts';

/** A trajectory's head after the last append or grant of this process. Other processes may have changed it since. */
export interface KnownHead {
  readonly locked: LockedHead;
  readonly head: Head;
  readonly sums: Sums;
}

/** Trajectories that are cached. The oldest entry is evicted first. */
const MAX_KNOWN = 10_000;

export class KnownHeads {
  readonly encoder = new StepEncoder();
  readonly #heads = new Map<bigint, KnownHead>();

  get(key: bigint): KnownHead | undefined {
    return this.#heads.get(key);
  }

  learn({ locked, head, sums }: KnownHead): void {
    this.#heads.delete(locked.key);
    if (isSealed(head.status)) return;
    if (this.#heads.size >= MAX_KNOWN) for (const key of this.#heads.keys()) if (this.#heads.delete(key)) break;
    this.#heads.set(locked.key, { locked, head, sums });
  }

  /** Caches a row after the commit of the transaction that locked it. */
  learnLocked(locked: LockedHead): void {
    this.learn({ locked, head: headOf(locked), sums: locked.sums });
  }

  forget(key: bigint): void {
    this.#heads.delete(key);
  }
}

/** `Appends.toSeen` sets the commit time. */
const SET_BY_ENGINE = '';

const NO_SIZES: ReadonlyMap<string, number> = new Map();

/**
 * Appends steps, whose states are all stored in their rows, to any number of trajectories. The cached heads decide, and
 * `Appends.toSeen` writes only to those whose locked rows still equal them. A cached head never causes a rejection:
 * everything but a plain append is left to a transaction, which reads the locked rows. Returns an outcome for each
 * batch, undefined if nothing of it was written; or undefined if that holds for all.
 */
export async function appendToKnown(
  engine: AppendsEngine,
  known: KnownHeads,
  batches: readonly AppendBatch[],
  compressed: CompressedSegments | undefined,
): Promise<(AppendOutcome | undefined)[] | undefined> {
  if (engine.appends === undefined) return undefined;
  const appends = new Map<bigint, PlainAppend>();
  const ends: bigint[] = [];
  for (const batch of batches) {
    const { key } = batch.ref;
    let append = appends.get(key);
    if (append === undefined) {
      const seen = known.get(key);
      if (seen === undefined) return undefined;
      append = new PlainAppend(seen, known.encoder);
      appends.set(key, append);
    }
    if (!append.add(batch)) return undefined;
    ends.push(append.end);
  }
  // Concurrent appends must not use heads that this statement may change.
  for (const key of appends.keys()) known.forget(key);
  const prepared = [...appends.values()].map((append) => append.prepared(compressed));
  const times = await engine.appends.toSeen(prepared);
  if (times.size === 0) return undefined;
  for (const key of times.keys()) known.learn(appends.get(key)!.moved());
  engine.changes.announce([...times.keys()]);
  const rows = compressedByTrajectory(prepared.flatMap(({ segments }) => segments));
  return batches.map((batch, i) => {
    const { key } = batch.ref;
    const time = times.get(key);
    if (time === undefined) return undefined;
    return withCompressedSteps(appends.get(key)!.outcome(ends[i]!, parseInstant(time)), batch, rows.get(key));
  });
}

/** Batches that append steps to one trajectory, and do nothing else. */
class PlainAppend {
  readonly #seen: KnownHead;
  readonly #encoder: StepEncoder;
  readonly #head: Head;
  readonly #segments: SegmentBuilder[] = [];
  #sums: Sums;

  constructor(seen: KnownHead, encoder: StepEncoder) {
    this.#seen = seen;
    this.#encoder = encoder;
    this.#head = { ...seen.head };
    this.#sums = seen.sums;
  }

  get end(): bigint {
    return this.#head.end;
  }

  /** Returns false if the batch is not a plain append, according to the cached head. */
  add(batch: AppendBatch): boolean {
    const { locked } = this.#seen;
    if (!isPlain(batch, locked.scoredMetrics) || !isMeant(batch, this.#seen) || !appends(this.#head, batch))
      return false;
    for (const step of batch.steps) {
      const stored = this.#encoder.encode(step, NO_SIZES);
      let segment = this.#segments.at(-1);
      if (segment?.hasRoomFor(step, stored) !== true) {
        segment = new SegmentBuilder(locked, this.#sums, step.stepNumber);
        this.#segments.push(segment);
      }
      segment.add(step, stored);
      this.#sums = segment.sums;
    }
    return true;
  }

  prepared(compressed: CompressedSegments | undefined): SeenAppend {
    const { tree, key } = this.#seen.locked;
    const { end: nextStepNumber, writerEpoch } = this.#seen.head;
    const segments = this.#segments.map((segment) => segment.row(SET_BY_ENGINE, compressed));
    return { seen: { tree, key, nextStepNumber, writerEpoch }, end: this.end, sums: this.#sums, segments };
  }

  /** Returns the head after the steps. */
  moved(): KnownHead {
    return { locked: this.#seen.locked, head: this.#head, sums: this.#sums };
  }

  /** Returns the outcome of the batch that ends there. */
  outcome(nextStepNumber: bigint, commitTime: Instant): AppendOutcome {
    return {
      kind: 'committed',
      nextStepNumber,
      uid: this.#seen.locked.uid,
      epoch: undefined,
      commitTime,
      duplicates: 0,
      status: this.#head.status,
      statusMessage: this.#head.statusMessage,
      sealTime: undefined,
    };
  }
}

function isPlain({ writer, steps, tags, seal }: AppendBatch, scoredMetrics: readonly string[]): boolean {
  if (writer !== undefined || steps.length === 0 || tags.length > 0 || seal !== undefined) return false;
  return steps.every((step) => rowStates(step).length === 0 && (scoredMetrics.length === 0 || step.metrics.size === 0));
}

/** A row key keeps its namespace and uid. */
function isMeant({ caller, uid, ref }: AppendBatch, { locked }: KnownHead): boolean {
  return caller.namespace === locked.namespace && ref.tree === locked.tree && (uid === undefined || uid === locked.uid);
}

/** Advances the head if the batch appends to it. */
function appends(head: Head, batch: AppendBatch): boolean {
  try {
    return decideAppend(head, batch, () => undefined).appended.length === batch.steps.length;
  } catch (error) {
    if (error instanceof AnabranchError) return false;
    throw error;
  }
}
