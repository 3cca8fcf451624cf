import type { Step } from '../../src/domain/step.ts';
import { type PackedStep, packStep } from '../../src/domain/step_codec/packed_step.ts';
import { readStep } from '../../src/domain/step_codec/read.ts';
import { WireWriter } from '../../src/domain/step_codec/wire_writer.ts';

/** Returns a step as the service gives it to the store. Its states are named by digest. */
export function packed(step: Step): PackedStep {
  return packStep(new WireWriter(1024), step);
}

export function unpacked({ bytes }: PackedStep): Step {
  return readStep(bytes, 0, bytes.length);
}
