import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { expect } from 'vitest';
import type { PackedStep } from '../../src/domain/step_codec/packed_step.ts';
import { anyWireStep, Choices, changeFrame, decodeFrame, encodeFrame, passedFrame } from './step_frames.ts';

/** Returns the steps of a frame that the pass accepts. Decoding must accept it too, and return the same. */
export function agreedPass(frame: Uint8Array): readonly PackedStep[] | undefined {
  const packed = passedFrame(frame);
  if (packed === undefined) return undefined;
  const decoded = decodeFrame(frame);
  if (!isDeepStrictEqual(packed, decoded)) {
    expect(packed, `frame ${Buffer.from(frame).toString('hex')}`).toStrictEqual(decoded);
    throw new Error(`the paths differ for the frame ${Buffer.from(frame).toString('hex')}`);
  }
  return packed.steps;
}

/** Changes arbitrary frames `count` times. Returns how many of the changed frames the pass accepted. */
export function passChangedFrames(count: number, seed: number): number {
  const choices = new Choices(seed);
  const steps = fc.array(anyWireStep, { minLength: 1, maxLength: 3 });
  const frames = fc
    .sample(steps, { seed, numRuns: 1000 })
    .map(encodeFrame)
    .filter((frame) => frame.length < 4096 && passedFrame(frame) !== undefined);
  expect(frames.length, `frames that the pass accepts, seed ${seed}`).toBeGreaterThan(20);
  let accepted = 0;
  for (let i = 0; i < count; i += 1) {
    const frame = changeFrame(frames[choices.below(frames.length)]!, choices);
    if (agreedPass(frame) !== undefined) accepted += 1;
  }
  return accepted;
}
