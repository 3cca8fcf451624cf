import { decideAppend, type Head } from '../../../../domain/append.ts';
import { trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import { rowStates } from '../../../../domain/step_codec/packed_step.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { Sums } from '../../kit/running_sums.ts';
import type { AppendsEngine, SeenAppend } from '../engine.ts';
import { type CompressedSegments, compressedByTrajectory, withCompressedSteps } from './compressed_segments.ts';
import type { KnownHead, KnownHeads } from './known_heads.ts';
import { SegmentBuilder, type StepEncoder } from './segment_builder.ts';

const NO_SIZES: ReadonlyMap<string, number> = new Map();

/**
 * Appends steps, whose states are all stored in their rows, to any number of trajectories. The cached heads decide, and
 * `Appends.toSeen` writes only to those whose locked rows still equal them. A cached head never causes a rejection:
 * everything but a plain append is left to a transaction, which reads the locked rows. Returns an outcome for each
 * batch, undefined if nothing of it was written; or undefined if that holds for all.
 */
export async function appendToKnown(
  engine: AppendsEngine,
  batches: readonly AppendBatch[],
  compressed: CompressedSegments | undefined,
): Promise<(AppendOutcome | undefined)[] | undefined> {
  const { appends, changes, known } = engine;
  if (!batches.some((batch) => isPlain(batch, known.get(batch.ref.key)))) return undefined;
  let group: PlainGroup | undefined;
  const times = await appends.toSeen(
    (now) => {
      group = PlainGroup.decide(known, batches);
      return group?.prepare(now, compressed) ?? [];
    },
    (committed) => group?.learn(committed),
  );
  if (group === undefined || times.size === 0) return undefined;
  changes.announce([...times.keys()].map(trajectoryHint));
  return group.outcomes(times);
}

/** Trajectories of which each batch appends steps, and does nothing else. */
class PlainGroup {
  readonly #known: KnownHeads;
  readonly #batches: readonly AppendBatch[];
  readonly #appends = new Map<bigint, PlainAppend>();
  /** Ends of the batches; undefined for those of other trajectories. */
  readonly #ends: (bigint | undefined)[] = [];
  #prepared: readonly SeenAppend[] = [];

  private constructor(known: KnownHeads, batches: readonly AppendBatch[]) {
    this.#known = known;
    this.#batches = batches;
  }

  /** Returns undefined if there is no such trajectory, according to the cached heads. */
  static decide(known: KnownHeads, batches: readonly AppendBatch[]): PlainGroup | undefined {
    const group = new PlainGroup(known, batches);
    const others = new Set<bigint>();
    for (const batch of batches) {
      const { key } = batch.ref;
      const end = others.has(key) ? undefined : group.#add(batch);
      group.#ends.push(end);
      if (end !== undefined) continue;
      others.add(key);
      group.#appends.delete(key);
    }
    return group.#appends.size === 0 ? undefined : group;
  }

  /** Returns the end of the batch, or undefined if it is not a plain append. */
  #add(batch: AppendBatch): bigint | undefined {
    const { key } = batch.ref;
    let append = this.#appends.get(key);
    if (append === undefined) {
      const seen = this.#known.get(key);
      if (seen === undefined) return undefined;
      append = new PlainAppend(seen, this.#known.encoder);
      this.#appends.set(key, append);
    }
    return append.add(batch) ? append.end : undefined;
  }

  prepare(now: string, compressed: CompressedSegments | undefined): readonly SeenAppend[] {
    // Concurrent appends must not use heads that these may change.
    for (const key of this.#appends.keys()) this.#known.forget(key);
    this.#prepared = Array.from(this.#appends.values(), (append) => append.prepared(now, compressed));
    return this.#prepared;
  }

  learn(times: ReadonlyMap<bigint, string>): void {
    for (const key of times.keys()) this.#known.learn(this.#appends.get(key)!.moved());
    for (const { seen, segments } of this.#prepared) {
      const commit_time = times.get(seen.key);
      if (commit_time !== undefined)
        this.#known.recent.add(
          segments.map((row) => (row.commit_time === commit_time ? row : { ...row, commit_time })),
        );
    }
  }

  outcomes(times: ReadonlyMap<bigint, string>): (AppendOutcome | undefined)[] {
    const rows = compressedByTrajectory(this.#prepared.flatMap(({ segments }) => segments));
    return this.#batches.map((batch, i) => {
      const { key } = batch.ref;
      const time = times.get(key);
      if (time === undefined) return undefined;
      const outcome = this.#appends.get(key)!.outcome(this.#ends[i]!, parseInstant(time));
      return withCompressedSteps(outcome, batch, rows.get(key));
    });
  }
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
    if (!isPlain(batch, this.#seen) || !isMeant(batch, this.#seen) || !appends(this.#head, batch)) return false;
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

  prepared(now: string, compressed: CompressedSegments | undefined): SeenAppend {
    const { tree, key } = this.#seen.locked;
    const { end: nextStepNumber, writerEpoch } = this.#seen.head;
    const segments = this.#segments.map((segment) => segment.row(now, compressed));
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

function isPlain({ writer, steps, tags, seal }: AppendBatch, known: KnownHead | undefined): known is KnownHead {
  if (known === undefined) return false;
  if (writer !== undefined || steps.length === 0 || tags.length > 0 || seal !== undefined) return false;
  const { scoredMetrics } = known.locked;
  return steps.every((step) => rowStates(step).length === 0 && (scoredMetrics.length === 0 || step.metrics.size === 0));
}

/** A cached head keeps its id, namespace and uid. */
function isMeant({ caller, trajectoryId, uid, ref }: AppendBatch, { locked }: KnownHead): boolean {
  const { id, namespace, tree } = locked;
  if (id !== trajectoryId || namespace !== caller.namespace || tree !== ref.tree) return false;
  return uid === undefined || uid === locked.uid;
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
