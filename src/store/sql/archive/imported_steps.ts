import { archiveInvalid, type StepsPart } from '../../../domain/archive.ts';
import type { Digest } from '../../../domain/ids.ts';
import { formatInstant, type Instant, parseInstant } from '../../../domain/instant.ts';
import { asSent, hasValidMarks, mayHaveMarks } from '../../../domain/pruning.ts';
import { isAttached, isKept, type StateRef } from '../../../domain/step.ts';
import { DamagedStep } from '../../../domain/step_codec/damaged_step.ts';
import { frameBytes, StepFrames } from '../../../domain/step_codec/frames.ts';
import { type PackedStep, packed } from '../../../domain/step_codec/packed_step.ts';
import { readStep } from '../../../domain/step_codec/read.ts';
import { readServerFields } from '../../../domain/step_codec/server_fields.ts';
import { WireWriter } from '../../../domain/step_codec/wire_writer.ts';
import { writeStep } from '../../../domain/step_codec/write.ts';
import { encodedStep } from '../step/stored_segment.ts';
import type { AttachedToStep } from './step_chunks.ts';
import { type ArchiveRecord, countOf, listOf, textOf } from './values.ts';

/** A step of an archive, checked, with what the server had set. */
export interface ImportedStep {
  readonly packed: PackedStep;
  /** Bytes of the step after its length, as the client sent it. Undefined if the step has no marks (S13). */
  readonly sentBytes: number | undefined;
  readonly writerEpoch: bigint;
  readonly commitTime: string;
  readonly rewardSum: number;
}

/** The steps of a part, and where the message of each ends. */
export interface ImportedSteps {
  readonly steps: readonly ImportedStep[];
  readonly ends: readonly number[];
}

/**
 * Decodes the steps of a part and encodes them again, which must yield the same bytes. `small`: the states that are
 * stored with them. Errors: ARCHIVE_INVALID.
 */
export function readSteps(
  { trajectoryId, firstStepNumber, bytes: received }: StepsPart,
  small: ReadonlyMap<Digest, Uint8Array>,
): ImportedSteps {
  const bytes = asBuffer(received);
  const [steps, ends]: [ImportedStep[], number[]] = [[], []];
  const out = new WireWriter(4096);
  const commitTimes = new CommitTimes();
  // Most parts have none, and one search costs less than one in each step.
  const hasMarks = mayHaveMarks(bytes);
  try {
    for (const frames = new StepFrames(bytes); frames.next(); ) {
      const { from, to } = frames;
      const { sentTo, writerEpoch, commitTime, rewardSum } = readServerFields(bytes, from, to);
      const read = readStep(bytes, from, sentTo);
      if (read.stepNumber !== firstStepNumber + BigInt(steps.length))
        throw new DamagedStep(`step ${read.stepNumber} is not the next one`);
      out.clear();
      writeStep(out, read);
      if (!out.hasWritten(bytes, from, sentTo)) throw new DamagedStep('its encoding is not canonical');
      if (read.states.some(isAttached)) throw new DamagedStep('attached states belong into "attached_states"');
      if (!hasValidMarks(read))
        throw new DamagedStep('the time of a pruned state is not in whole seconds from 1978 on');
      const encoded = bytes.subarray(from, sentTo);
      const states = read.states.map((state) => withBytes(state, small));
      const sentBytes = hasMarks && mayHaveMarks(encoded) ? frameBytes(encodedStep(asSent(read))) : undefined;
      const stored = { writerEpoch, commitTime: commitTimes.textOf(commitTime), rewardSum };
      steps.push({ packed: packed({ ...read, states }, encoded), sentBytes, ...stored });
      ends.push(to);
    }
  } catch (error) {
    if (!(error instanceof DamagedStep)) throw error;
    const next = firstStepNumber + BigInt(steps.length);
    throw archiveInvalid(`step ${next} of trajectory ${trajectoryId}`, error.message, error);
  }
  return { steps, ends };
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
  try {
    return parseInstant(textOf(record, column));
  } catch {
    throw archiveInvalid('record "attached_states"', 'a state has an invalid time');
  }
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
    if (typeof each.size !== 'number' || !/^[0-9a-f]{64}$/.test(digest)) {
      throw archiveInvalid('record "attached_states"', 'a state has no digest or size');
    }
    const state = {
      name: textOf(each, 'name'),
      digest,
      mediaType: textOf(each, 'media_type'),
      size: each.size,
      attachTime: timeIn(each, 'attach_time'),
      prunedTime: each.pruned_time === undefined ? undefined : timeIn(each, 'pruned_time'),
    };
    return { stepNumber: countOf(each, 'step_number'), state: data === undefined ? state : { ...state, data } };
  });
}
