import { DamagedStep } from './damaged_step.ts';
import { RESPONSE, STEP } from './tags.ts';
import { WireReader } from './wire_reader.ts';
import type { WireWriter } from './wire_writer.ts';

/** Where a message is within its bytes. */
interface Range {
  readonly from: number;
  readonly to: number;
}

/**
 * Writes the fields of a stored step as `writeStep` writes them, without decoding them. The view BASIC leaves out what
 * `readStep` leaves out. The bytes must have been checked: their damage is found only if parts do not end where they
 * should. Errors: DamagedStep.
 */
export function forwardStep(out: WireWriter, bytes: Buffer, { from, to }: Range, view: 'BASIC' | 'FULL'): void {
  if (view === 'FULL') out.raw(bytes, from, to);
  else forwardBasic(out, bytes, from, to);
}

function forwardBasic(out: WireWriter, bytes: Buffer, from: number, to: number): void {
  const input = new WireReader(bytes, from, to);
  if (input.has(STEP.stepNumber)) input.long();
  out.raw(bytes, from, input.at);
  while (input.has(STEP.actions)) input.skip();
  while (input.has(STEP.observations)) input.skip();
  const rewardFrom = input.at;
  if (input.has(STEP.reward)) input.double();
  if (input.has(STEP.terminated)) input.flag();
  if (input.has(STEP.truncated)) input.flag();
  out.raw(bytes, rewardFrom, input.at);
  if (input.has(STEP.infoJson)) input.skip();
  if (input.has(STEP.metadataJson)) input.skip();
  out.raw(bytes, input.at, to);
}

/**
 * Returns the reward of the stored step with this number, without decoding the rest. Errors: DamagedStep, also if the
 * step has another number.
 */
export function readReward(bytes: Buffer, { from, to }: Range, stepNumber: bigint): number | undefined {
  const input = new WireReader(bytes, from, to);
  const found = input.has(STEP.stepNumber) ? input.long() : 0n;
  if (found !== stepNumber) throw new DamagedStep(`step ${found} at the place of step ${stepNumber}`);
  while (input.has(STEP.actions)) input.skip();
  while (input.has(STEP.observations)) input.skip();
  return input.has(STEP.reward) ? input.double() : undefined;
}

/** Returns the first `count` of the steps of a response, which must have as many. */
export function firstSteps(bytes: Uint8Array, count: number): Uint8Array {
  const input = new WireReader(bytes, 0, bytes.length);
  for (let i = 0; i < count; i += 1) {
    input.expect(RESPONSE.steps);
    input.skip();
  }
  return bytes.subarray(0, input.at);
}
