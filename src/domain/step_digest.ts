import { hash } from 'node:crypto';
import type { Digest } from './ids.ts';
import type { Instant } from './instant.ts';
import { type Action, type Content, isAttached, type Observation, type Step } from './step.ts';
import { compareText } from './text_order.ts';

/**
 * W6: returns the digest that tells a replayed step from a different one. It is the SHA-256 of a canonical form of
 * everything that the client sent; values set by the server are excluded.
 *
 * The form is a sequence of fields in the order of their numbers in `anabranch.v1.Step`, each a tag byte and its value:
 * - Absent fields are left out, so absent differs from zero if the proto has presence.
 * - Text is UTF-8 after its length (u32, big endian).
 * - Numbers are 8 bytes, token ids 4, big endian. Doubles are their bits, with one NaN.
 * - Maps are sorted by the UTF-8 bytes of their keys. Lists follow their count.
 * - A state of the step is its name, digest and media type; a state in a content has no name. Attached states (W10) are
 *   left out.
 * - The form of a content is its number in `anabranch.v1.Content`, and that of the items of a tensor its number in
 *   `anabranch.v1.Tensor`.
 * - The first fields of an action have no tags and are never left out. Each later one, and the media type of JSON, has
 *   the tag 64 + its number.
 *
 * Clients compute it too, so the form must not change. Golden vectors test it.
 */
export function stepDigest(step: Step): Digest {
  const out = new CanonicalWriter();
  out.tag(1).int(step.stepNumber);
  if (step.actions.length > 0) {
    out.tag(2).count(step.actions.length);
    for (const action of step.actions) writeAction(out, action);
  }
  if (step.observations.length > 0) {
    out.tag(3).count(step.observations.length);
    for (const observation of step.observations) writeObservation(out, observation);
  }
  if (step.reward !== undefined) out.tag(4).double(step.reward);
  if (step.terminated) out.tag(5);
  if (step.truncated) out.tag(6);
  if (step.infoJson !== '') out.tag(7).text(step.infoJson);
  if (step.metadataJson !== '') out.tag(8).text(step.metadataJson);
  if (step.metrics.size > 0) writeMetrics(out, step.metrics);
  writeTime(out, 10, step.startTime);
  writeTime(out, 11, step.endTime);
  const states = step.states.filter((state) => !isAttached(state));
  if (states.length > 0) {
    out.tag(12).count(states.length);
    for (const { name, digest, mediaType } of states) out.text(name).text(digest).text(mediaType);
  }
  if (step.labels.size > 0) writeLabels(out, step.labels);
  return out.digest();
}

/**
 * Later fields have tags, so that they do not change the form of actions and contents without them. Such a tag differs
 * from those of a step, and from the first byte of what follows in an action or a list, which is 0.
 */
const ADDED = 64;

function writeAction(out: CanonicalWriter, action: Action): void {
  out.text(action.type).text(action.name).text(action.callId);
  writeContent(out, action.content);
  out.words(action.tokenIds);
  out.count(action.logprobs.length);
  for (const logprob of action.logprobs) out.double(logprob);
  if (action.promptTokenIds.length > 0) out.tag(ADDED + 7).words(action.promptTokenIds);
  if (action.keptTokens !== undefined) out.tag(ADDED + 8).word(action.keptTokens);
  if (action.tokenIdsState !== undefined) out.tag(ADDED + 9).text(action.tokenIdsState);
  if (action.promptTokenIdsState !== undefined) out.tag(ADDED + 10).text(action.promptTokenIdsState);
}

function writeObservation(out: CanonicalWriter, observation: Observation): void {
  out
    .text(observation.type)
    .text(observation.callId)
    .tag(observation.isError ? 1 : 0);
  writeContent(out, observation.content);
}

function writeContent(out: CanonicalWriter, content: Content | undefined): void {
  switch (content?.kind) {
    case undefined:
      out.tag(0);
      return;
    case 'text':
      out.tag(1).text(content.text);
      return;
    case 'json':
      out.tag(2).text(content.json);
      if (content.mediaType !== '') out.tag(ADDED + 6).text(content.mediaType);
      return;
    case 'data':
      out.tag(3).bytes(content.data).text(content.mediaType);
      return;
    case 'state':
      out.tag(4).text(content.digest).text(content.mediaType);
      return;
    case 'uri':
      out.tag(5).text(content.uri).text(content.mediaType);
      return;
    case 'tensor':
      out.tag(8).text(content.dtype).words(content.shape);
      if (content.data !== undefined) out.tag(3).bytes(content.data);
      else out.tag(4).text(content.digest);
  }
}

function writeMetrics(out: CanonicalWriter, metrics: ReadonlyMap<string, number>): void {
  out.tag(9).count(metrics.size);
  for (const key of [...metrics.keys()].sort(compareText)) out.text(key).double(metrics.get(key) as number);
}

function writeLabels(out: CanonicalWriter, labels: ReadonlyMap<string, string>): void {
  out.tag(16).count(labels.size);
  for (const key of [...labels.keys()].sort(compareText)) out.text(key).text(labels.get(key) as string);
}

function writeTime(out: CanonicalWriter, tag: number, time: Instant | undefined): void {
  if (time === undefined) return;
  // Two words, because nanoseconds of the years 1 to 9999 do not fit into 64 bits.
  out
    .tag(tag)
    .int(time / 1_000_000_000n)
    .int(time % 1_000_000_000n);
}

/**
 * Steps are hashed one at a time, so all of them share one buffer. It grows to the size of the largest step, at most a
 * few MiB.
 */
let scratch = Buffer.allocUnsafe(16 * 1024);

class CanonicalWriter {
  #length = 0;

  tag(value: number): this {
    this.#reserve(1);
    scratch[this.#length++] = value;
    return this;
  }

  count(value: number): this {
    this.#reserve(4);
    this.#length = scratch.writeUInt32BE(value, this.#length);
    return this;
  }

  word(value: number): this {
    this.#reserve(4);
    this.#length = scratch.writeInt32BE(value, this.#length);
    return this;
  }

  words(values: readonly number[]): this {
    this.count(values.length);
    this.#reserve(4 * values.length);
    for (const value of values) this.#length = scratch.writeInt32BE(value, this.#length);
    return this;
  }

  int(value: bigint): this {
    this.#reserve(8);
    this.#length = scratch.writeBigInt64BE(value, this.#length);
    return this;
  }

  double(value: number): this {
    this.#reserve(8);
    this.#length = scratch.writeDoubleBE(Number.isNaN(value) ? Number.NaN : value, this.#length);
    return this;
  }

  text(value: string): this {
    this.#reserve(4 + value.length * 3);
    const written = scratch.write(value, this.#length + 4, 'utf8');
    scratch.writeUInt32BE(written, this.#length);
    this.#length += 4 + written;
    return this;
  }

  bytes(value: Uint8Array): this {
    this.#reserve(4 + value.length);
    scratch.writeUInt32BE(value.length, this.#length);
    scratch.set(value, this.#length + 4);
    this.#length += 4 + value.length;
    return this;
  }

  digest(): Digest {
    return hash('sha256', scratch.subarray(0, this.#length), 'hex');
  }

  #reserve(bytes: number): void {
    if (this.#length + bytes <= scratch.length) return;
    const larger = Buffer.allocUnsafe(Math.max(scratch.length * 2, this.#length + bytes));
    scratch.copy(larger, 0, 0, this.#length);
    scratch = larger;
  }
}
