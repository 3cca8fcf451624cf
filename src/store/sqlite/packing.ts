import type { SealRequest } from '../../domain/append.ts';
import type { AnabranchError } from '../../domain/errors.ts';
import type { NewState, NewStep, StateRef } from '../../domain/step.ts';
import { contentStates } from '../../domain/step.ts';
import type { AppendBatch, AppendOutcome } from '../contract/append.ts';
import { type BoundStep, bindStepTexts } from '../sql/step_texts.ts';
import { arrivedError, type CarriedError, carryError } from './carried_error.ts';

/**
 * Batches in a form that passes from thread to thread at little cost: a structured clone of the objects costs each thread more than SQLite takes to
 * insert a row. Texts are one text, numbers one array, bytes one buffer, which is handed over.
 */
export interface PackedBatches {
  readonly writers: readonly Writer[];
  readonly seals: readonly SealRequest[];
  readonly numbers: Float64Array<ArrayBuffer>;
  readonly text: string;
  readonly lengths: Uint32Array<ArrayBuffer>;
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** What batches of one stream have in common. */
type Writer = Pick<AppendBatch, 'caller' | 'ref' | 'trajectoryId' | 'uid' | 'writerEpoch'>;

const TERMINATED = 1;
const TRUNCATED = 2;
const REWARDED = 4;

/** Undefined where a row's texts depend on what the database holds (contents kept as states), or a number is beyond a double's. */
export function packBatches(batches: readonly AppendBatch[]): PackedBatches | undefined {
  if (!batches.every(({ steps }) => steps.every(isPackable))) return undefined;
  const packer = new Packer();
  for (const batch of batches) packer.batch(batch);
  return packer.finish();
}

function isPackable(step: NewStep): boolean {
  return contentStates(step).length === 0 && step.stepNumber <= Number.MAX_SAFE_INTEGER;
}

export function unpackBatches(packed: PackedBatches): AppendBatch[] {
  const unpacker = new Unpacker(packed);
  const batches: AppendBatch[] = [];
  while (!unpacker.done) batches.push(unpacker.batch());
  return batches;
}

class Packer {
  private readonly writers: Writer[] = [];
  private readonly writerIndexes = new Map<string, number>();
  private readonly seals: SealRequest[] = [];
  private readonly numbers: number[] = [];
  private readonly texts: string[] = [];
  private readonly chunks: Uint8Array[] = [];
  private bytes = 0;

  batch(batch: AppendBatch): void {
    const seal = batch.seal === undefined ? -1 : this.seals.push(batch.seal) - 1;
    this.numbers.push(this.writerOf(batch), seal, batch.steps.length, batch.states.length);
    for (const step of batch.steps) this.step(step);
    for (const { digest, data } of batch.states) {
      this.texts.push(digest);
      this.numbers.push(data.length);
      this.chunks.push(data);
      this.bytes += data.length;
    }
  }

  finish(): PackedBatches {
    const bytes = new Uint8Array(this.bytes);
    let at = 0;
    for (const chunk of this.chunks) {
      bytes.set(chunk, at);
      at += chunk.length;
    }
    const { writers, seals, texts } = this;
    const lengths = Uint32Array.from(texts, (text) => text.length);
    return { writers, seals, numbers: Float64Array.from(this.numbers), text: texts.join(''), lengths, bytes };
  }

  private step(step: NewStep): void {
    const { stepNumber, reward, states } = step;
    const flags =
      (step.terminated ? TERMINATED : 0) | (step.truncated ? TRUNCATED : 0) | (reward === undefined ? 0 : REWARDED);
    this.numbers.push(Number(stepNumber), flags, reward ?? 0, states.length);
    const { actions, observations, metrics, startTime, endTime } = bindStepTexts(step, NO_SIZES);
    const { contentDigest, infoJson, metadataJson } = step;
    this.texts.push(
      contentDigest,
      actions,
      observations,
      metrics,
      infoJson,
      metadataJson,
      startTime ?? '',
      endTime ?? '',
    );
    for (const { name, digest, mediaType, size } of states) {
      this.texts.push(name, digest, mediaType);
      this.numbers.push(size);
    }
  }

  private writerOf({ caller, ref, trajectoryId, uid, writerEpoch }: AppendBatch): number {
    const name = `${ref.key} ${writerEpoch} ${uid} ${caller.namespace} ${caller.actor}`;
    let index = this.writerIndexes.get(name);
    if (index === undefined) {
      index = this.writers.push({ caller, ref, trajectoryId, uid, writerEpoch }) - 1;
      this.writerIndexes.set(name, index);
    }
    return index;
  }
}

const NO_SIZES: ReadonlyMap<string, number> = new Map();
const NOTHING: readonly never[] = [];
const NO_METRICS: ReadonlyMap<string, number> = new Map();

class Unpacker {
  private readonly packed: PackedBatches;
  private atNumber = 0;
  private atLength = 0;
  private atText = 0;
  private atByte = 0;

  constructor(packed: PackedBatches) {
    this.packed = packed;
  }

  get done(): boolean {
    return this.atNumber === this.packed.numbers.length;
  }

  batch(): AppendBatch {
    const writer = this.packed.writers[this.number()]!;
    const seal = this.packed.seals[this.number()];
    const [stepCount, stateCount] = [this.number(), this.number()];
    const steps: NewStep[] = [];
    for (let i = 0; i < stepCount; i += 1) steps.push(this.step());
    const states: NewState[] = [];
    for (let i = 0; i < stateCount; i += 1) states.push({ digest: this.text(), data: this.bytes(this.number()) });
    return { ...writer, steps, states, seal };
  }

  /** A step with its texts in place of its actions, observations and metrics. */
  private step(): BoundStep {
    const [stepNumber, flags, reward, stateCount] = [this.number(), this.number(), this.number(), this.number()];
    const contentDigest = this.text();
    const [actions, observations, metrics] = [this.text(), this.text(), this.text()];
    const [infoJson, metadataJson] = [this.text(), this.text()];
    const [startTime, endTime] = [this.text(), this.text()];
    return {
      stepNumber: BigInt(stepNumber),
      contentDigest,
      reward: (flags & REWARDED) === 0 ? undefined : reward,
      terminated: (flags & TERMINATED) !== 0,
      truncated: (flags & TRUNCATED) !== 0,
      infoJson,
      metadataJson,
      actions: NOTHING,
      observations: NOTHING,
      metrics: NO_METRICS,
      startTime: undefined,
      endTime: undefined,
      states: stateCount === 0 ? NOTHING : this.states(stateCount),
      texts: { actions, observations, metrics, startTime: startTime || null, endTime: endTime || null },
    };
  }

  private states(count: number): StateRef[] {
    const states: StateRef[] = [];
    for (let i = 0; i < count; i += 1) {
      states.push({ name: this.text(), digest: this.text(), mediaType: this.text(), size: this.number() });
    }
    return states;
  }

  private number(): number {
    return this.packed.numbers[this.atNumber++]!;
  }

  private text(): string {
    const from = this.atText;
    this.atText += this.packed.lengths[this.atLength++]!;
    return this.packed.text.slice(from, this.atText);
  }

  private bytes(length: number): Uint8Array {
    const from = this.atByte;
    this.atByte += length;
    return this.packed.bytes.subarray(from, this.atByte);
  }
}

/** Outcomes for their way back: nearly all of them are commits of trajectories that run on, at one time. */
export interface PackedOutcomes {
  readonly commitTime: bigint;
  /** Of each outcome its end and its duplicates; an end of -1: it is among the others. */
  readonly numbers: Float64Array<ArrayBuffer>;
  readonly others: ReadonlyMap<number, CarriedOutcome>;
}

type CarriedOutcome =
  | Exclude<AppendOutcome, { kind: 'refused' }>
  | { readonly kind: 'refused'; readonly error: CarriedError };

export function packOutcomes(outcomes: readonly AppendOutcome[]): PackedOutcomes {
  const numbers = new Float64Array(outcomes.length * 2);
  const others = new Map<number, CarriedOutcome>();
  const commitTime = outcomes.find(runsOn)?.commitTime ?? 0n;
  for (const [i, outcome] of outcomes.entries()) {
    if (runsOn(outcome) && outcome.commitTime === commitTime) {
      numbers[2 * i] = Number(outcome.nextStepNumber);
      numbers[2 * i + 1] = outcome.duplicates;
    } else {
      numbers[2 * i] = -1;
      others.set(i, outcome.kind === 'refused' ? { kind: 'refused', error: carryError(outcome.error) } : outcome);
    }
  }
  return { commitTime, numbers, others };
}

function runsOn(outcome: AppendOutcome): outcome is Extract<AppendOutcome, { kind: 'committed' }> {
  return outcome.kind === 'committed' && outcome.status === 'RUNNING' && outcome.statusMessage === '';
}

export function unpackOutcomes({ commitTime, numbers, others }: PackedOutcomes): AppendOutcome[] {
  const outcomes: AppendOutcome[] = [];
  for (let i = 0; 2 * i < numbers.length; i += 1) {
    const other = others.get(i);
    if (other?.kind === 'refused')
      outcomes.push({ kind: 'refused', error: arrivedError(other.error) as AnabranchError });
    else outcomes.push(other ?? commitOf(commitTime, numbers[2 * i]!, numbers[2 * i + 1]!));
  }
  return outcomes;
}

function commitOf(commitTime: bigint, end: number, duplicates: number): AppendOutcome {
  return {
    kind: 'committed',
    nextStepNumber: BigInt(end),
    commitTime,
    duplicates,
    status: 'RUNNING',
    statusMessage: '',
    sealTime: undefined,
  };
}
