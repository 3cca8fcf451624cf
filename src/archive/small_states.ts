import { archiveInvalid } from '../domain/archive.ts';
import type { NewState } from '../domain/step.ts';
import { DamagedStep } from '../domain/step_codec/damaged_step.ts';
import { StepFrames } from '../domain/step_codec/frames.ts';
import { STATE } from '../domain/step_codec/tags.ts';
import { WireReader } from '../domain/step_codec/wire_reader.ts';
import { WireWriter } from '../domain/step_codec/wire_writer.ts';

/** Encodes states as messages `StepState` with data and digest, each after its length. */
export function writeSmallStates(states: readonly NewState[]): Uint8Array {
  const out = new WireWriter(states.reduce((bytes, { data }) => bytes + data.length + MORE_BYTES, 0));
  const message = new WireWriter(8192);
  for (const { digest, data } of states) {
    message.bytes(STATE.data, data);
    message.text(STATE.digest, digest);
    out.delimitedFrom(message);
  }
  return out.finish();
}

/** At most as many bytes are added to the data: two tags and lengths, a digest, and the length of the message. */
const MORE_BYTES = 80;

/**
 * Reads what `writeSmallStates` wrote. The data are views of `bytes`. Errors: ARCHIVE_INVALID, which names the entry.
 */
export function readSmallStates(entry: string, bytes: Uint8Array): NewState[] {
  const states: NewState[] = [];
  try {
    for (const frames = new StepFrames(bytes); frames.next(); ) {
      const input = new WireReader(bytes, frames.from, frames.to);
      input.expect(STATE.data);
      const data = input.bytes();
      input.expect(STATE.digest);
      states.push({ digest: input.text(), data });
      input.finish();
    }
  } catch (error) {
    if (error instanceof DamagedStep) throw archiveInvalid(entry, error.message, error);
    throw error;
  }
  return states;
}
