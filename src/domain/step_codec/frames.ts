import { DamagedStep } from './damaged_step.ts';
import { varintSize, WireWriter } from './wire_writer.ts';

/**
 * Iterates over the steps of a body. Each follows its length, a varint. Allocates nothing for a step:
 *
 *     for (const frames = new StepFrames(body); frames.next(); ) readStep(body, frames.from, frames.to);
 */
export class StepFrames {
  /** The bytes of the current step are [from, to). */
  from = 0;
  to = 0;
  readonly #body: Uint8Array;

  constructor(body: Uint8Array) {
    this.#body = body;
  }

  /** Moves to the next step. Returns false at the end. Errors: DamagedStep. */
  next(): boolean {
    const body = this.#body;
    let at = this.to;
    if (at >= body.length) return false;
    let byte = body[at++]!;
    let length = byte & 0x7f;
    for (let shift = 7; byte > 0x7f; shift += 7) {
      if (at >= body.length || shift > MAX_SHIFT) throw new DamagedStep(`the length of a step ends before byte ${at}`);
      byte = body[at++]!;
      if (byte === 0) throw new DamagedStep(`the length of a step is not canonical, before byte ${at}`);
      length |= (byte & 0x7f) << shift;
    }
    if (length > body.length - at) throw new DamagedStep(`a step of ${length} bytes does not fit, at byte ${at}`);
    this.from = at;
    this.to = at + length;
    return true;
  }
}

/** Lengths have at most four bytes: 256 MiB. */
const MAX_SHIFT = 21;

/** Returns the number of bytes that an encoded step takes in a body, with its length. */
export function frameBytes(step: Uint8Array): number {
  return varintSize(step.length) + step.length;
}

/** Returns the body of encoded steps. */
export function bodyOf(steps: readonly Uint8Array[]): Uint8Array {
  let bytes = 0;
  for (const step of steps) bytes += frameBytes(step);
  const out = new WireWriter(bytes + RESERVED_BYTES);
  for (const step of steps) out.delimited(step);
  return out.finish();
}

/** Before it writes a length, the writer grows unless it has room for this many bytes. */
const RESERVED_BYTES = 8;
