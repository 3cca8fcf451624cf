import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { expect } from 'vitest';
import type { PackedStep } from '../../src/domain/step_codec/packed_step.ts';
import { passFrame } from '../../src/domain/step_codec/pass.ts';
import { anyWireStep, Choices, changeFrame, decodeFrame, encodeFrame } from './step_frames.ts';

/** What the pass makes of a frame, if it accepts it: decoding must accept it too, and make the same of it. */
export function agreedPass(frame: Uint8Array): PackedStep[] | undefined {
  const packed = passFrame(frame);
  if (packed === undefined) return undefined;
  const decoded = decodeFrame(frame);
  if (!isDeepStrictEqual(packed, decoded)) {
    expect(packed, `frame ${Buffer.from(frame).toString('hex')}`).toStrictEqual(decoded);
    throw new Error(`the paths differ for the frame ${Buffer.from(frame).toString('hex')}`);
  }
  return packed;
}

/** Changes arbitrary frames `count` times. Returns how many of the changed frames the pass accepted. */
export function passChangedFrames(count: number, seed: number): number {
  const choices = new Choices(seed);
  const steps = fc.array(anyWireStep, { minLength: 1, maxLength: 3 });
  const frames = fc
    .sample(steps, { seed, numRuns: 1000 })
    .map(encodeFrame)
    .filter((frame) => frame.length < 4096 && passFrame(frame) !== undefined);
  expect(frames.length, `frames that the pass accepts, seed ${seed}`).toBeGreaterThan(20);
  let accepted = 0;
  for (let i = 0; i < count; i += 1) {
    const frame = changeFrame(frames[choices.below(frames.length)]!, choices);
    if (agreedPass(frame) !== undefined) accepted += 1;
  }
  return accepted;
}
