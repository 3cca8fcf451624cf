import type { Digest } from '../ids.ts';
import { type Instant, instantFromParts, isInstant } from '../instant.ts';
import { LIMITS } from '../limits.ts';
import { stateDigest } from '../state_digest.ts';
import { DEFAULT_STATE_NAME, itemBytes, type NewState, type StateRef, type TensorState, tensorBytes } from '../step.ts';
import { isMediaType } from '../text.ts';
import { compareText } from '../text_order.ts';
import { CheckedReader, DECLINED, demand, given, nonZero, positive } from './checked_reader.ts';
import type { PackedEntry, PackedStep } from './packed_step.ts';
import {
  ACTION,
  APPEND_ENTRY,
  BATCH,
  CONTENT,
  ENTRY,
  FRAME,
  LABEL,
  LABELS_TAIL,
  OBSERVATION,
  STATE,
  STEP,
  STEP_REQUEST,
  TENSOR,
  TIMESTAMP,
} from './tags.ts';
import type { WireReader } from './wire_reader.ts';
import { WireWriter } from './wire_writer.ts';
import { writeState } from './write.ts';

/**
 * Checks the steps of an encoded AppendStepsRequest, and packs them without decoding them, as `packStep` does. The
 * bytes of a step are a view of the message if they can be stored as they are.
 *
 * Returns undefined if the message must be decoded: its bytes are not canonical, it has more than steps, or it breaks a
 * rule. Accepts no message that is rejected once it is decoded. Takes time linear in bytes.
 */
export function passFrame(frame: Uint8Array): PackedStep[] | undefined {
  return unlessDeclined(() => new Pass(frame, 0, frame.length).steps(FRAME.steps));
}

/** As `passFrame`, for an AppendStepRequest. */
export function passStepRequest(request: Uint8Array): PackedEntry | undefined {
  return unlessDeclined(() => new Pass(request, 0, request.length).stepRequest());
}

/** The entries of an AppendBatchRequest. */
export interface PassedBatch {
  /** Undefined: the entry must be decoded. It has more than steps for a trajectory, or `passFrame` would decline it. */
  readonly entries: readonly (PackedEntry | undefined)[];
  /** Where the bytes of each entry begin and end. */
  readonly bounds: readonly (readonly [from: number, to: number])[];
}

/** As `passFrame`, for an AppendBatchRequest. */
export function passBatch(batch: Uint8Array): PassedBatch | undefined {
  return unlessDeclined(() => entriesOf(batch));
}

function entriesOf(batch: Uint8Array): PassedBatch {
  const { bytes, input } = new CheckedReader(batch, 0, batch.length);
  const entries: (PackedEntry | undefined)[] = [];
  const bounds: [number, number][] = [];
  let values = 0;
  let steps = 0;
  while (input.has(BATCH.entries)) {
    const from = input.skip();
    bounds.push([from, input.at]);
    const pass = new Pass(bytes, from, input.at);
    const entry = unlessDeclined(() => pass.entry());
    values += 1 + pass.values;
    steps += entry?.steps.length ?? 0;
    demand(entries.push(entry) <= LIMITS.batchEntries && values <= LIMITS.messageValues && steps <= MOST_STEPS);
  }
  input.finish();
  demand(entries.length > 0);
  return { entries, bounds };
}

function unlessDeclined<T>(pass: () => T): T | undefined {
  try {
    return pass();
  } catch (error) {
    if (error === DECLINED) return undefined;
    throw error;
  }
}

/** Messages with more steps are decoded: before these take memory, their values are counted. */
const MOST_STEPS = 8192;

const NUMBER = /^[0-9]+$/;
/** Maximum size of `Content.size`, which the server adds to each content that refers to a state (W3). */
export const SIZE_BYTES = 6;

const NO_DIGESTS: readonly Digest[] = [];
const NO_TENSORS: readonly TensorState[] = [];
const NO_SHAPE: readonly number[] = [];
const NO_STATES: readonly StateRef[] = [];
const NO_DATA: readonly NewState[] = [];
const NO_METRICS: ReadonlyMap<string, number> = new Map();
const NO_LABELS: ReadonlyMap<string, string> = new Map();

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

class Pass {
  readonly #checked: CheckedReader;
  readonly #bytes: Buffer;
  readonly #input: WireReader;
  readonly #size: number;
  /** States that contents and actions of the current step refer to. */
  #contentStates: Set<Digest> | undefined;
  #tensorStates: TensorState[] | undefined;
  /** Number of contents of the current step that refer to a state. */
  #contentRefs = 0;
  /** Steps that cannot be stored as they are: they have states, or flags that are written though they are false. */
  #rewritten: { readonly step: Mutable<PackedStep>; readonly from: number; readonly to: number }[] | undefined;
  #out: WireWriter | undefined;

  constructor(bytes: Uint8Array, from: number, to: number) {
    this.#checked = new CheckedReader(bytes, from, to);
    this.#bytes = this.#checked.bytes;
    this.#input = this.#checked.input;
    this.#size = to - from;
  }

  /** Messages and map entries so far (see `LIMITS.messageValues`). */
  get values(): number {
    return this.#checked.values;
  }

  stepRequest(): PackedEntry {
    const entry = { ...this.#target(STEP_REQUEST), steps: this.steps(STEP_REQUEST.step) };
    demand(entry.steps.length === 1);
    return entry;
  }

  entry(): PackedEntry {
    return { ...this.#target(APPEND_ENTRY), steps: this.steps(APPEND_ENTRY.steps) };
  }

  /** The steps with this tag are the rest of the message. There must be at least one. */
  steps(tag: number): PackedStep[] {
    const steps: PackedStep[] = [];
    while (this.#input.has(tag)) {
      demand(steps.length < MOST_STEPS);
      steps.push(this.#step());
    }
    this.#input.finish();
    demand(steps.length > 0);
    if (this.#out === undefined) return steps;
    const stored = this.#out.take();
    for (const { step, from, to } of this.#rewritten ?? []) step.bytes = stored.subarray(from, to);
    return steps;
  }

  #target(tags: typeof STEP_REQUEST | typeof APPEND_ENTRY): Omit<PackedEntry, 'steps'> {
    const input = this.#input;
    input.expect(tags.trajectoryId);
    const trajectoryId = this.#checked.uuid();
    const uid = input.has(tags.uid) ? this.#checked.uuid() : '';
    const writerEpoch = input.has(tags.writerEpoch) ? input.long() : undefined;
    demand(writerEpoch === undefined || writerEpoch >= 0n);
    return { trajectoryId, uid, writerEpoch };
  }

  #step(): PackedStep {
    const input = this.#input;
    this.#checked.count();
    this.#contentStates = undefined;
    this.#tensorStates = undefined;
    this.#contentRefs = 0;
    const outer = input.enter();
    const from = input.at;
    const stepNumber = input.has(STEP.stepNumber) ? positive(input.long()) : 0n;
    for (let i = 0; input.has(STEP.actions); i += 1) this.#action(i);
    for (let i = 0; input.has(STEP.observations); i += 1) this.#observation(i);
    const reward = input.has(STEP.reward) ? this.#checked.double() : undefined;
    const flagsFrom = input.at;
    const terminated = input.has(STEP.terminated) && input.bool();
    const truncated = input.has(STEP.truncated) && input.bool();
    const flagsTo = input.at;
    if (input.has(STEP.infoJson)) this.#checked.json();
    if (input.has(STEP.metadataJson)) this.#checked.json();
    const metrics = input.has(STEP.metrics) ? this.#metrics() : NO_METRICS;
    const startTime = input.has(STEP.startTime) ? this.#time() : undefined;
    const endTime = input.has(STEP.endTime) ? this.#time() : undefined;
    const statesFrom = input.at;
    const states = input.has(STEP.states) ? this.#states() : NO_STATES;
    const statesTo = input.at;
    const labels = input.has(STEP.labels) ? this.#labels() : NO_LABELS;
    const to = input.at;
    input.leave(outer);
    demand(to - from + SIZE_BYTES * this.#contentRefs <= LIMITS.stepBytes);
    const step: Mutable<PackedStep> = {
      stepNumber,
      reward,
      terminated,
      truncated,
      startTime,
      endTime,
      metrics,
      labels,
      states,
      contentStates: this.#contentStates === undefined ? NO_DIGESTS : [...this.#contentStates],
      tensorStates: this.#tensorStates ?? NO_TENSORS,
      contentData: NO_DATA,
      bytes: this.#bytes,
    };
    const flags = (terminated ? 2 : 0) + (truncated ? 2 : 0);
    if (states.length === 0 && flagsTo - flagsFrom === flags) step.bytes = this.#view(from, to);
    else this.#rewrite(step, [from, flagsFrom, flagsTo, statesFrom, statesTo, to]);
    return step;
  }

  /** `at`: where the step begins, where its flags begin and end, where its states begin and end, and where it ends. */
  #rewrite(step: Mutable<PackedStep>, at: readonly [number, number, number, number, number, number]): void {
    this.#out ??= new WireWriter(this.#size + 128);
    this.#rewritten ??= [];
    const out = this.#out;
    const begin = out.length;
    out.raw(this.#bytes, at[0], at[1]);
    if (step.terminated) out.flag(STEP.terminated);
    if (step.truncated) out.flag(STEP.truncated);
    out.raw(this.#bytes, at[2], at[3]);
    for (const state of step.states) writeState(out, state);
    out.raw(this.#bytes, at[4], at[5]);
    this.#rewritten.push({ step, from: begin, to: out.length });
  }

  #view(from: number, to: number): Uint8Array {
    return new Uint8Array(this.#bytes.buffer, this.#bytes.byteOffset + from, to - from);
  }

  #action(index: number): void {
    const input = this.#input;
    demand(index < LIMITS.stepParts);
    this.#checked.count();
    const outer = input.enter();
    if (input.has(ACTION.type)) this.#checked.text(1, LIMITS.typeBytes);
    if (input.has(ACTION.name)) this.#checked.text(1, LIMITS.actionNameBytes);
    if (input.has(ACTION.callId)) this.#checked.text(1, LIMITS.callIdBytes);
    if (input.has(ACTION.content)) this.#content();
    const hasTokens = this.#tokens(ACTION.tokenIds);
    if (input.has(ACTION.logprobs)) this.#checked.floats();
    const hasPrompt = this.#tokens(ACTION.promptTokenIds);
    if (input.has(ACTION.keptTokens)) demand(input.int() >= 0);
    if (input.has(ACTION.tokenIdsState)) this.#tokensState(hasTokens);
    if (input.has(ACTION.promptTokenIdsState)) this.#tokensState(hasPrompt);
    input.leave(outer);
  }

  /** Returns whether the action has a list of tokens under the tag. */
  #tokens(tag: number): boolean {
    if (!this.#input.has(tag)) return false;
    demand(this.#input.skipPackedInts() > 0);
    return true;
  }

  /** `hasList`: the tokens are in the action too, which is against the rules. */
  #tokensState(hasList: boolean): void {
    demand(!hasList);
    this.#contentState();
  }

  #observation(index: number): void {
    const input = this.#input;
    demand(index < LIMITS.stepParts);
    this.#checked.count();
    const outer = input.enter();
    if (input.has(OBSERVATION.type)) this.#checked.text(1, LIMITS.typeBytes);
    if (input.has(OBSERVATION.callId)) this.#checked.text(1, LIMITS.callIdBytes);
    if (input.has(OBSERVATION.isError)) input.flag();
    if (input.has(OBSERVATION.content)) this.#content();
    input.leave(outer);
  }

  /** Large data, which becomes a state (FM4), is left to decoding. */
  #content(): void {
    const input = this.#input;
    this.#checked.count();
    const outer = input.enter();
    if (input.has(CONTENT.text)) this.#checked.text(0, LIMITS.stepBytes);
    else if (input.has(CONTENT.tensor)) this.#tensor();
    else {
      if (input.has(CONTENT.json)) this.#checked.json();
      else if (input.has(CONTENT.data)) {
        const from = input.skip();
        demand(input.at - from < LIMITS.contentStateBytes);
      } else if (input.has(CONTENT.stateDigest)) {
        this.#contentRefs += 1;
        this.#contentState();
      } else {
        input.expect(CONTENT.uri);
        this.#checked.text(0, LIMITS.uriBytes);
      }
      if (input.has(CONTENT.mediaType)) this.#mediaType();
    }
    input.leave(outer);
  }

  #mediaType(): string {
    const mediaType = this.#checked.textValue(LIMITS.mediaTypeBytes);
    demand(isMediaType(mediaType));
    return mediaType;
  }

  /** Reads the digest of a state that a content or an action refers to. */
  #contentState(): Digest {
    const digest = this.#checked.digest();
    this.#contentStates ??= new Set();
    this.#contentStates.add(digest);
    return digest;
  }

  #tensor(): void {
    const input = this.#input;
    this.#checked.count();
    const outer = input.enter();
    input.expect(TENSOR.dtype);
    const ofItem = given(itemBytes(this.#checked.textValue(LIMITS.dtypeBytes)));
    const shape = input.has(TENSOR.shape) ? this.#shape() : NO_SHAPE;
    const bytes = tensorBytes(ofItem, shape);
    demand(bytes <= LIMITS.stateBytes);
    if (input.has(TENSOR.data)) {
      const from = input.skip();
      demand(input.at - from === bytes && bytes < LIMITS.contentStateBytes);
    } else {
      input.expect(TENSOR.stateDigest);
      this.#tensorStates ??= [];
      this.#tensorStates.push({ digest: this.#contentState(), bytes });
    }
    input.leave(outer);
  }

  /** The elements count as values, because the proto has rules for them. */
  #shape(): readonly number[] {
    const shape = this.#input.packedInts();
    demand(shape.length > 0 && shape.length <= LIMITS.tensorDimensions);
    for (const length of shape) {
      this.#checked.count();
      demand(length >= 0);
    }
    return shape;
  }

  #metrics(): ReadonlyMap<string, number> {
    const input = this.#input;
    const metrics = new Map<string, number>();
    do {
      this.#checked.count();
      const outer = input.enter();
      input.expect(ENTRY.key);
      const key = this.#checked.textValue(LIMITS.metricKeyBytes);
      // The decoded message is an object, which sorts keys that are numbers.
      demand(!metrics.has(key) && metrics.size < LIMITS.metrics && !NUMBER.test(key));
      input.expect(ENTRY.value);
      metrics.set(key, this.#checked.double());
      input.leave(outer);
    } while (input.has(STEP.metrics));
    return metrics;
  }

  #labels(): ReadonlyMap<string, string> {
    const input = this.#input;
    const labels = new Map<string, string>();
    do {
      input.expect(LABELS_TAIL);
      this.#checked.count();
      const outer = input.enter();
      input.expect(LABEL.key);
      const key = this.#checked.textValue(LIMITS.labelKeyBytes);
      // As keys of metrics.
      demand(!labels.has(key) && labels.size < LIMITS.stepLabels && !NUMBER.test(key));
      input.expect(LABEL.value);
      labels.set(key, this.#checked.textValue(LIMITS.labelValueBytes, 0));
      input.leave(outer);
    } while (input.has(STEP.labels));
    return labels;
  }

  #time(): Instant {
    const input = this.#input;
    this.#checked.count();
    const outer = input.enter();
    const seconds = input.has(TIMESTAMP.seconds) ? nonZero(input.signed()) : 0;
    const nanos = input.has(TIMESTAMP.nanos) ? nonZero(input.unsigned()) : 0;
    input.leave(outer);
    demand(isInstant(seconds, nanos));
    return instantFromParts(BigInt(seconds), nanos);
  }

  /** W9: returns the states in the order of their names. Requires unique names. */
  #states(): readonly StateRef[] {
    const states: StateRef[] = [];
    do {
      demand(states.length < LIMITS.statesPerStep);
      states.push(this.#state());
    } while (this.#input.has(STEP.states));
    if (states.length > 1) states.sort((a, b) => compareText(a.name, b.name));
    for (let i = 1; i < states.length; i += 1) demand(states[i]!.name !== states[i - 1]!.name);
    return states;
  }

  #state(): StateRef {
    const input = this.#input;
    this.#checked.count();
    const outer = input.enter();
    const name = input.has(STATE.name) ? this.#checked.textValue(LIMITS.stateNameBytes) : DEFAULT_STATE_NAME;
    const data = input.has(STATE.data) ? input.bytes() : undefined;
    const expected = input.has(STATE.digest) ? this.#checked.digest() : undefined;
    const mediaType = input.has(STATE.mediaType) ? this.#mediaType() : '';
    input.leave(outer);
    if (data === undefined) return { name, digest: given(expected), mediaType, size: 0, data };
    demand(data.length <= LIMITS.inlineStateBytes);
    const digest = stateDigest(data);
    demand(expected === undefined || expected === digest);
    return { name, digest, mediaType, size: data.length, data };
  }
}
