import { isUtf8 } from 'node:buffer';
import type { Digest } from '../ids.ts';
import { type Instant, instantFromParts, isInstant } from '../instant.ts';
import { LIMITS } from '../limits.ts';
import { stateDigest } from '../state_digest.ts';
import { DEFAULT_STATE_NAME, type NewState, type StateRef } from '../step.ts';
import { compareText } from '../text_order.ts';
import type { PackedStep } from './packed_step.ts';
import { ACTION, CONTENT, ENTRY, LABEL, LABELS_TAIL, OBSERVATION, STATE, STEP, TIMESTAMP } from './tags.ts';
import { WireReader } from './wire_reader.ts';
import { WireWriter } from './wire_writer.ts';
import { writeState } from './write.ts';

/**
 * Checks the steps of an encoded AppendStepsRequest, and packs them without decoding them, as `packStep` does. The bytes
 * of a step are a view of the frame if they can be stored as they are.
 *
 * Returns undefined if the frame must be decoded: its bytes are not canonical, it has more than steps, or it breaks a
 * rule. Accepts no frame that is rejected once it is decoded. Takes time linear in bytes.
 */
export function passFrame(frame: Uint8Array): PackedStep[] | undefined {
  try {
    return new Pass(frame).frame();
  } catch (error) {
    if (error === DECLINED) return undefined;
    throw error;
  }
}

/** One error for all, because declining must not cost more than decoding. */
const DECLINED = new Error('the frame must be decoded');
const decline = () => DECLINED;

/** The tag of `AppendStepsRequest.steps`. */
const FRAME_STEPS = 0x12;

/** Frames with more steps are decoded: before these take memory, their values are counted. */
const MOST_STEPS = 8192;

/** As in the rules of the protos. */
const MOST_PARTS = 1024;
const TYPE_BYTES = 128;
const NAME_BYTES = 256;
const MEDIA_TYPE_BYTES = 128;
const URI_BYTES = 2048;
const DIGEST = /^[0-9a-f]{64}$/;
const NUMBER = /^[0-9]+$/;
/** Maximum size of `Content.size`, which the server adds to each content that refers to a state (W3). */
export const SIZE_BYTES = 6;

/** Text of at most so many bytes is checked byte by byte, which costs less than a native call. */
const SHORT_TEXT = 64;

/** Texts of a frame that are kept, to decode repeated names once. */
const KNOWN_TEXTS = 64;

const NO_DIGESTS: readonly Digest[] = [];
const NO_STATES: readonly StateRef[] = [];
const NO_DATA: readonly NewState[] = [];
const NO_METRICS: ReadonlyMap<string, number> = new Map();
const NO_LABELS: ReadonlyMap<string, string> = new Map();

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

class Pass {
  readonly #bytes: Buffer;
  readonly #input: WireReader;
  /** Messages and map entries so far (see `LIMITS.messageValues`). */
  #values = 0;
  /** States that contents of the current step refer to. */
  #contentStates: Set<Digest> | undefined;
  /** Number of contents of the current step that refer to a state. */
  #contentRefs = 0;
  /** Steps that cannot be stored as they are: they have states, or flags that are written though they are false. */
  #rewritten: { readonly step: Mutable<PackedStep>; readonly from: number; readonly to: number }[] | undefined;
  #out: WireWriter | undefined;
  /** Decoded texts of this frame. The index is computed from the bytes of the text. */
  readonly #known: { readonly text: string; readonly from: number; readonly to: number }[] = [];

  constructor(frame: Uint8Array) {
    this.#bytes = Buffer.isBuffer(frame) ? frame : Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength);
    this.#input = new WireReader(this.#bytes, 0, frame.length, decline);
  }

  frame(): PackedStep[] {
    const steps: PackedStep[] = [];
    while (this.#input.has(FRAME_STEPS)) {
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

  /** Counts a message or map entry. Declines before a frame with many of them takes much memory. */
  #count(): void {
    this.#values += 1;
    demand(this.#values <= LIMITS.messageValues);
  }

  #step(): PackedStep {
    const input = this.#input;
    this.#count();
    this.#contentStates = undefined;
    this.#contentRefs = 0;
    const outer = input.enter();
    const from = input.at;
    const stepNumber = input.has(STEP.stepNumber) ? positive(input.long()) : 0n;
    for (let i = 0; input.has(STEP.actions); i += 1) this.#action(i);
    for (let i = 0; input.has(STEP.observations); i += 1) this.#observation(i);
    const reward = input.has(STEP.reward) ? this.#double() : undefined;
    const flagsFrom = input.at;
    const terminated = input.has(STEP.terminated) && input.bool();
    const truncated = input.has(STEP.truncated) && input.bool();
    const flagsTo = input.at;
    if (input.has(STEP.infoJson)) this.#json();
    if (input.has(STEP.metadataJson)) this.#json();
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
    this.#out ??= new WireWriter(this.#bytes.length + 128);
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
    demand(index < MOST_PARTS);
    this.#count();
    const outer = input.enter();
    if (input.has(ACTION.type)) this.#text(1, TYPE_BYTES);
    if (input.has(ACTION.name)) this.#text(1, NAME_BYTES);
    if (input.has(ACTION.callId)) this.#text(1, NAME_BYTES);
    if (input.has(ACTION.content)) this.#content();
    if (input.has(ACTION.tokenIds)) demand(input.skipPackedInts() > 0);
    if (input.has(ACTION.logprobs)) this.#floats();
    input.leave(outer);
  }

  #observation(index: number): void {
    const input = this.#input;
    demand(index < MOST_PARTS);
    this.#count();
    const outer = input.enter();
    if (input.has(OBSERVATION.type)) this.#text(1, TYPE_BYTES);
    if (input.has(OBSERVATION.callId)) this.#text(1, NAME_BYTES);
    if (input.has(OBSERVATION.isError)) input.flag();
    if (input.has(OBSERVATION.content)) this.#content();
    input.leave(outer);
  }

  /** Large data, which becomes a state (FM4), is left to decoding. */
  #content(): void {
    const input = this.#input;
    this.#count();
    const outer = input.enter();
    if (input.has(CONTENT.text)) this.#text(0, LIMITS.stepBytes);
    else if (input.has(CONTENT.json)) this.#json();
    else {
      if (input.has(CONTENT.data)) {
        const from = input.skip();
        demand(input.at - from < LIMITS.contentStateBytes);
      } else if (input.has(CONTENT.stateDigest)) {
        this.#contentRefs += 1;
        this.#contentStates ??= new Set();
        this.#contentStates.add(this.#digest());
      } else {
        input.expect(CONTENT.uri);
        this.#text(0, URI_BYTES);
      }
      if (input.has(CONTENT.mediaType)) this.#text(1, MEDIA_TYPE_BYTES);
    }
    input.leave(outer);
  }

  #metrics(): ReadonlyMap<string, number> {
    const input = this.#input;
    const metrics = new Map<string, number>();
    do {
      this.#count();
      const outer = input.enter();
      input.expect(ENTRY.key);
      const key = this.#textValue(LIMITS.metricKeyBytes);
      // The decoded message is an object, which sorts keys that are numbers.
      demand(!metrics.has(key) && metrics.size < LIMITS.metrics && !NUMBER.test(key));
      input.expect(ENTRY.value);
      metrics.set(key, this.#double());
      input.leave(outer);
    } while (input.has(STEP.metrics));
    return metrics;
  }

  #labels(): ReadonlyMap<string, string> {
    const input = this.#input;
    const labels = new Map<string, string>();
    do {
      input.expect(LABELS_TAIL);
      this.#count();
      const outer = input.enter();
      input.expect(LABEL.key);
      const key = this.#textValue(LIMITS.labelKeyBytes);
      // As keys of metrics.
      demand(!labels.has(key) && labels.size < LIMITS.stepLabels && !NUMBER.test(key));
      input.expect(LABEL.value);
      labels.set(key, this.#textValue(LIMITS.labelValueBytes, 0));
      input.leave(outer);
    } while (input.has(STEP.labels));
    return labels;
  }

  #time(): Instant {
    const input = this.#input;
    this.#count();
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
    this.#count();
    const outer = input.enter();
    const name = input.has(STATE.name) ? this.#textValue(LIMITS.stateNameBytes) : DEFAULT_STATE_NAME;
    const data = input.has(STATE.data) ? input.bytes() : undefined;
    const expected = input.has(STATE.digest) ? this.#digest() : undefined;
    const mediaType = input.has(STATE.mediaType) ? this.#textValue(MEDIA_TYPE_BYTES) : '';
    input.leave(outer);
    if (data === undefined) return { name, digest: given(expected), mediaType, size: 0, data };
    demand(data.length <= LIMITS.inlineStateBytes);
    const digest = stateDigest(data);
    demand(expected === undefined || expected === digest);
    return { name, digest, mediaType, size: data.length, data };
  }

  #digest(): Digest {
    const from = this.#input.skip();
    const digest = this.#bytes.toString('latin1', from, this.#input.at);
    demand(DIGEST.test(digest));
    return digest;
  }

  /** Returns the decoded text. Names repeat from step to step, so most of them are known. */
  #textValue(most: number, least = 1): string {
    const from = this.#text(least, most);
    const to = this.#input.at;
    if (from === to) return '';
    const place = (this.#bytes[from]! + 3 * this.#bytes[to - 1]! + 7 * (to - from)) % KNOWN_TEXTS;
    const known = this.#known[place];
    if (known !== undefined && isSame(this.#bytes, known.from, known.to, from, to)) return known.text;
    const text = this.#bytes.toString('utf8', from, to);
    this.#known[place] = { text, from, to };
    return text;
  }

  /** Checks text of `least` to `most` bytes. Returns where it begins. */
  #text(least: number, most: number): number {
    const from = this.#input.skip();
    const length = this.#input.at - from;
    demand(length >= least && length <= most && isStorable(this.#bytes, from, this.#input.at));
    return from;
  }

  /**
   * Parses the bytes as Latin-1, which is faster than UTF-8. The result is the same for valid UTF-8: outside of strings,
   * JSON has only ASCII, and within strings it allows all other characters.
   */
  #json(): void {
    const from = this.#input.skip();
    const to = this.#input.at;
    demand(isStorable(this.#bytes, from, to));
    try {
      JSON.parse(this.#bytes.toString('latin1', from, to));
    } catch {
      throw DECLINED;
    }
  }

  #double(): number {
    const from = this.#input.at;
    const value = this.#input.double();
    demand(!Number.isNaN(value) || this.#bytes.readBigUInt64LE(from) === NAN_BITS);
    return value;
  }

  #floats(): void {
    const from = this.#input.skip();
    const to = this.#input.at;
    demand(to > from && (to - from) % 4 === 0);
    for (let at = from; at < to; at += 4) {
      const bits = this.#bytes.readUInt32LE(at);
      demand((bits & 0x7fff_ffff) <= INFINITE_FLOAT || bits === NAN_FLOAT);
    }
  }
}

/** The only NaN that is stored. */
const NAN_BITS = 0x7ff8_0000_0000_0000n;
const NAN_FLOAT = 0x7fc0_0000;
const INFINITE_FLOAT = 0x7f80_0000;

function demand(condition: boolean): void {
  if (!condition) throw DECLINED;
}

function given<T>(value: T | undefined): T {
  if (value === undefined) throw DECLINED;
  return value;
}

/** Declines 0, which canonical bytes leave out, and negative numbers, which are rejected. */
function positive(value: bigint): bigint {
  demand(value > 0n);
  return value;
}

function nonZero(value: number): number {
  demand(value !== 0);
  return value;
}

/** W11: UTF-8 without U+0000. */
function isStorable(bytes: Buffer, from: number, to: number): boolean {
  if (to - from > SHORT_TEXT) return isLongStorable(bytes.subarray(from, to));
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at]!;
    if (byte === 0 || byte > 127) return isLongStorable(bytes.subarray(from, to));
  }
  return true;
}

function isSame(bytes: Uint8Array, from: number, to: number, otherFrom: number, otherTo: number): boolean {
  if (to - from !== otherTo - otherFrom) return false;
  for (let at = from, other = otherFrom; at < to; at += 1, other += 1) if (bytes[at] !== bytes[other]) return false;
  return true;
}

function isLongStorable(text: Buffer): boolean {
  return isUtf8(text) && !text.includes(0);
}
