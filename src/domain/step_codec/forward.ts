import type { StoredStep } from '../step.ts';
import { STEP } from './tags.ts';
import { WireReader } from './wire_reader.ts';
import type { WireWriter } from './wire_writer.ts';
import { type ServerFields, writeServerFields } from './write.ts';

/**
 * Writes the stored step in bytes [from, to) as a message `Step`, with the fields that the server sets, without decoding
 * it: the bytes that `writeStoredStep` writes of it. The view BASIC leaves out what `readStep` leaves out. Errors:
 * DamagedStep, for what it passes over. Other damage is sent on, so the bytes must have been checked.
 */
export function forwardStep(
  out: WireWriter,
  bytes: Buffer,
  { from, to }: { readonly from: number; readonly to: number },
  server: ServerFields,
  view: 'BASIC' | 'FULL',
): void {
  if (view === 'FULL') out.raw(bytes, from, to);
  else forwardBasic(out, bytes, from, to);
  writeServerFields(out, server);
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

/** Returns the reward of the stored step in bytes [from, to), without decoding the rest. Errors: DamagedStep. */
export function readReward(bytes: Uint8Array, from: number, to: number): StoredStep['reward'] {
  const input = new WireReader(bytes, from, to);
  if (input.has(STEP.stepNumber)) input.long();
  while (input.has(STEP.actions)) input.skip();
  while (input.has(STEP.observations)) input.skip();
  return input.has(STEP.reward) ? input.double() : undefined;
}
