import { type ArchiveRecord, archiveInvalid, type StepsPart } from '../../../../domain/archive.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { asSent, hasValidMarks, mayHaveMarks } from '../../../../domain/pruning.ts';
import { isAttached, isKept, type StateRef, type Step } from '../../../../domain/step.ts';
import { DamagedStep } from '../../../../domain/step_codec/damaged_step.ts';
import { frameBytes, StepFrames } from '../../../../domain/step_codec/frames.ts';
import { type PackedStep, packed } from '../../../../domain/step_codec/packed_step.ts';
import { readStep } from '../../../../domain/step_codec/read.ts';
import { readServerFields, type ServerFields } from '../../../../domain/step_codec/server_fields.ts';
import { WireWriter } from '../../../../domain/step_codec/wire_writer.ts';
import { writeStep } from '../../../../domain/step_codec/write.ts';
import { stepFault } from '../../../../domain/step_fault.ts';
import { expectedBy, MOMENT } from '../../kit/tables/forms.ts';
import { encodedStep } from '../../log/read/segment.ts';
import { countOf, listOf, textOf } from './nouns.ts';
import type { AttachedToStep } from './step_chunks.ts';

/** A step of an archive, checked, with what the server had set. */
export interface ImportedStep {
  readonly packed: PackedStep;
  /** Bytes of the step after its length, as the client sent it. Undefined if the step has no marks (S13). */
  readonly sentBytes: number | undefined;
  readonly writerEpoch: bigint;
  readonly commitTime: string;
  readonly rewardSum: number;
  readonly sizes: readonly StateSize[];
}

/** The size that a step says a state has. */
export interface StateSize {
  readonly digest: Digest;
  readonly size: number;
}

/** The steps of a part, and where the message of each ends. */
export interface ImportedSteps {
  readonly steps: readonly ImportedStep[];
  readonly ends: readonly number[];
}

/** A decoded step, and where its parts lie in the bytes of the part. */
interface FoundStep extends ServerFields {
  readonly step: Step;
  readonly from: number;
  readonly to: number;
}

/** Decodes the steps of a part, in order. Errors: ARCHIVE_INVALID. */
function* stepsIn(
  { trajectoryId, firstStepNumber, bytes }: StepsPart,
  check?: (found: FoundStep) => string | undefined,
): Generator<FoundStep, void, undefined> {
  let next = firstStepNumber;
  try {
    for (const frames = new StepFrames(bytes); frames.next(); next += 1n) {
      const { from, to } = frames;
      const server = readServerFields(bytes, from, to);
      const step = readStep(bytes, from, server.sentTo);
      if (step.stepNumber !== next) throw new DamagedStep(`step ${step.stepNumber} is not the next one`);
      const found = { ...server, step, from, to };
      const fault = check?.(found);
      if (fault !== undefined) throw new DamagedStep(fault);
      yield found;
    }
  } catch (error) {
    if (!(error instanceof DamagedStep)) throw error;
    throw archiveInvalid(`step ${next} of trajectory ${trajectoryId}`, error.message, error);
  }
}

/**
 * Decodes the steps of a part, encodes them again, which must yield the same bytes, and checks all values. Errors:
 * ARCHIVE_INVALID.
 */
export function checkSteps(part: StepsPart): void {
  const bytes = asBuffer(part.bytes);
  const out = new WireWriter(4096);
  let steps = 0;
  const check = ({ step, from, sentTo, to, commitTime, writerEpoch }: FoundStep) => {
    out.clear();
    writeStep(out, step);
    if (!out.hasWritten(bytes, from, sentTo)) return 'its encoding is not canonical';
    if (step.states.some(isAttached)) return 'attached states belong into "attached_states"';
    if (!hasValidMarks(step)) return 'the time of a pruned state is not in whole seconds from 1978 on';
    if (to - from > LIMITS.messageBytes - ROOM_BYTES) return `it has ${to - from} bytes`;
    if (!isMoment(commitTime)) return 'its commit time is out of range';
    if (writerEpoch < 0n) return 'its epoch is negative';
    return stepFault(step);
  };
  for (const _ of stepsIn({ ...part, bytes }, check)) steps += 1;
  if (steps > 0 && steps <= LIMITS.archiveSteps) return;
  throw archiveInvalid(
    `steps from ${part.firstStepNumber} of trajectory ${part.trajectoryId}`,
    `an entry has ${steps} steps, and must have 1 to ${LIMITS.archiveSteps}`,
  );
}

/** Room for the message around a step in a response. */
const ROOM_BYTES = 1024;

/** Times of commits have whole microseconds. */
function isMoment(time: Instant): boolean {
  return time % 1000n === 0n && expectedBy(MOMENT, formatInstant(time, 6)) === undefined;
}

/** Steps that are decoded in one iteration of the event loop. */
const AT_ONCE = 128;

/**
 * Decodes the steps of a part that was checked. `small`: the states that are stored with them. `pause` is awaited now
 * and then. Errors: ARCHIVE_INVALID.
 */
export async function readSteps(
  part: StepsPart,
  small: ReadonlyMap<Digest, Uint8Array>,
  pause: () => Promise<void> | undefined,
): Promise<ImportedSteps> {
  const bytes = asBuffer(part.bytes);
  const [steps, ends]: [ImportedStep[], number[]] = [[], []];
  const commitTimes = new CommitTimes();
  // Most parts have none, and one search costs less than one in each step.
  const hasMarks = mayHaveMarks(bytes);
  for (const { step, from, to, sentTo, writerEpoch, commitTime, rewardSum } of stepsIn({ ...part, bytes })) {
    if (steps.length % AT_ONCE === 0) await pause();
    const encoded = bytes.subarray(from, sentTo);
    const states = step.states.map((state) => withBytes(state, small));
    const sentBytes = hasMarks && mayHaveMarks(encoded) ? frameBytes(encodedStep(asSent(step))) : undefined;
    const stored = { writerEpoch, commitTime: commitTimes.textOf(commitTime), rewardSum };
    steps.push({ packed: packed({ ...step, states }, encoded), sentBytes, sizes: sizesIn(step), ...stored });
    ends.push(to);
  }
  return { steps, ends };
}

/** Returns the sizes that a step says its states have, apart from pruned ones. */
function sizesIn({ states, actions, observations }: Step): StateSize[] {
  const sizes: StateSize[] = states.filter(isKept);
  for (const { content } of actions) if (content?.kind === 'state' && isKept(content)) sizes.push(content);
  for (const { content } of observations) if (content?.kind === 'state' && isKept(content)) sizes.push(content);
  return sizes;
}

/** Consecutive steps of one commit share the text of its time. */
class CommitTimes {
  #last: Instant | undefined;
  #text = '';

  textOf(time: Instant): string {
    if (time !== this.#last) {
      this.#last = time;
      this.#text = formatInstant(time, 6);
    }
    return this.#text;
  }
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function withBytes(state: StateRef, small: ReadonlyMap<Digest, Uint8Array>): StateRef {
  const data = isKept(state) ? small.get(state.digest) : undefined;
  return data === undefined ? state : { ...state, data };
}

function timeIn(record: ArchiveRecord, column: 'attach_time' | 'pruned_time'): Instant {
  return parseInstant(textOf(record, column));
}

/** Reads the states that were attached to the next steps. Errors: ARCHIVE_INVALID. */
export function readAttached(record: ArchiveRecord, small: ReadonlyMap<Digest, Uint8Array>): AttachedToStep[] {
  return listOf(record, 'states').map((each) => {
    const digest = textOf(each, 'digest');
    const data = each.small === true ? small.get(digest) : undefined;
    if (each.small === true && each.pruned_time !== undefined) {
      throw archiveInvalid(`state ${digest}`, 'it was pruned, and cannot have bytes');
    }
    if (each.small === true && data === undefined) throw archiveInvalid(`state ${digest}`, 'its bytes are missing');
    if (data !== undefined && data.length !== each.size) throw archiveInvalid(`state ${digest}`, 'it has another size');
    const state = {
      name: textOf(each, 'name'),
      digest,
      mediaType: textOf(each, 'media_type'),
      size: each.size as number,
      attachTime: timeIn(each, 'attach_time'),
      prunedTime: each.pruned_time === undefined ? undefined : timeIn(each, 'pruned_time'),
    };
    return { stepNumber: countOf(each, 'step_number'), state: data === undefined ? state : { ...state, data } };
  });
}
