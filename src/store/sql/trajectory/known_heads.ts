import { decideAppend, type Head } from '../../../domain/append.ts';
import { AnabranchError } from '../../../domain/errors.ts';
import { parseInstant } from '../../../domain/instant.ts';
import { isSealed } from '../../../domain/lifecycle.ts';
import { type PackedStep, rowStates } from '../../../domain/step_codec/packed_step.ts';
import type { AppendBatch, AppendOutcome } from '../../contract/append.ts';
import type { Engine, LockedHead } from '../engine.ts';
import type { Sums } from '../step/running_sums.ts';
import { SegmentBuilder, StepEncoder } from '../step/segment.ts';
import { headOf } from './heads.ts';

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

/** `Engine.appendOne` sets the commit time, and ignores the one of the row. */
const SET_BY_ENGINE = '';

const NO_SIZES: ReadonlyMap<string, number> = new Map();

/**
 * Appends one step, whose states are all stored in its row, to one trajectory, as a client that waits for each ack
 * sends it. The cached head decides, and `Engine.appendOne` writes only if the locked row still equals that head. A
 * cached head never causes a rejection: everything but a plain append is left to a transaction, which reads the locked
 * row. Returns undefined if nothing was written.
 */
export async function appendToKnown(
  engine: Engine,
  known: KnownHeads,
  batches: readonly AppendBatch[],
): Promise<AppendOutcome | undefined> {
  const [batch] = batches;
  if (engine.appendOne === undefined || batch === undefined || batches.length > 1) return undefined;
  const seen = known.get(batch.ref.key);
  const step = soleStep(batch);
  if (seen === undefined || step === undefined || !isMeant(batch, seen)) return undefined;
  const { locked, sums } = seen;
  if (locked.scoredMetrics.length > 0 && step.metrics.size > 0) return undefined;
  const head = { ...seen.head };
  if (!appends(head, batch)) return undefined;
  const segment = new SegmentBuilder(locked, sums, step.stepNumber);
  segment.add(step, known.encoder.encode(step, NO_SIZES));
  const { tree, key } = locked;
  // Concurrent appends must not use a head that this statement may change.
  known.forget(key);
  const time = await engine.appendOne(
    { tree, key, nextStepNumber: step.stepNumber, writerEpoch: head.writerEpoch },
    segment.row(SET_BY_ENGINE),
    segment.sums,
  );
  if (time === undefined) return undefined;
  known.learn({ locked, head, sums: segment.sums });
  engine.announce([key]);
  return {
    kind: 'committed',
    nextStepNumber: head.end,
    uid: locked.uid,
    epoch: undefined,
    commitTime: parseInstant(time),
    duplicates: 0,
    status: head.status,
    statusMessage: head.statusMessage,
    sealTime: undefined,
  };
}

function soleStep({ writer, steps, tags, seal }: AppendBatch): PackedStep | undefined {
  const [step] = steps;
  if (step === undefined || steps.length > 1 || tags.length > 0 || seal !== undefined) return undefined;
  if (writer !== undefined) return undefined;
  return rowStates(step).length > 0 ? undefined : step;
}

/** A row key keeps its namespace and uid. */
function isMeant({ caller, uid, ref }: AppendBatch, { locked }: KnownHead): boolean {
  return caller.namespace === locked.namespace && ref.tree === locked.tree && (uid === undefined || uid === locked.uid);
}

/** Advances the head if the batch appends to it. */
function appends(head: Head, batch: AppendBatch): boolean {
  try {
    return decideAppend(head, batch, () => undefined).appended.length === 1;
  } catch (error) {
    if (error instanceof AnabranchError) return false;
    throw error;
  }
}
