import { isDeepStrictEqual } from 'node:util';
import { create, type DescMessage, fromBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { expect } from 'vitest';
import {
  AppendBatchRequestSchema,
  AppendEntrySchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { PackedStep } from '../../src/domain/step_codec/packed_step.ts';
import { passStepRequest } from '../../src/domain/step_codec/pass.ts';
import { fromPacked, packBatch } from '../../src/service/trajectory/packed_request.ts';
import {
  anyBatch,
  anyStepRequest,
  anyWireStep,
  Choices,
  changeMessage,
  decodeBatch,
  decodeFrame,
  decodeStepRequest,
  encodeFrame,
  passedFrame,
} from './step_frames.ts';

/** Returns the steps of a frame that the pass accepts. Decoding must accept it too, and return the same. */
export function agreedPass(frame: Uint8Array): readonly PackedStep[] | undefined {
  const packed = passedFrame(frame);
  if (packed === undefined) return undefined;
  requireSame(packed, decodeFrame(frame), frame);
  return packed.steps;
}

/** As `agreedPass`, for an AppendStepRequest. Returns whether the pass accepts it. */
export function agreedStepRequest(request: Uint8Array): boolean {
  const entry = passStepRequest(request);
  if (entry !== undefined) requireSame(fromPacked(entry), decodeStepRequest(request), request);
  return entry !== undefined;
}

/** As `agreedPass`, for an AppendBatchRequest. Returns whether the pass accepts all its entries. */
export function agreedBatch(batch: Uint8Array): boolean {
  const request = packBatch(batch, (parts) =>
    create(AppendBatchRequestSchema, { entries: parts.map((entry) => fromBinary(AppendEntrySchema, entry)) }),
  );
  if (request === undefined) return false;
  const { entries } = request;
  const isWhole = !entries.includes(undefined);
  const decoded = decodeBatch(batch);
  // A message with entries that were decoded is refused as a whole if these break a rule outside of steps.
  if (decoded === undefined && !isWhole) return false;
  const packed = entries.map((entry, i) => (entry === undefined ? decoded?.[i] : fromPacked(entry)));
  requireSame(packed, decoded, batch);
  return isWhole;
}

function requireSame(passed: unknown, decoded: unknown, message: Uint8Array): void {
  if (isDeepStrictEqual(passed, decoded)) return;
  const which = `message ${Buffer.from(message).toString('hex')}`;
  expect(passed, which).toStrictEqual(decoded);
  throw new Error(`the paths differ for the ${which}`);
}

/** Encoded requests with steps, and whether the pass accepts one, as decoding must do then. */
interface Requests {
  readonly schema: DescMessage;
  readonly any: fc.Arbitrary<Uint8Array>;
  readonly isAccepted: (request: Uint8Array) => boolean;
}

export const REQUESTS: Readonly<Record<'AppendSteps' | 'AppendStep' | 'AppendBatch', Requests>> = {
  AppendSteps: {
    schema: AppendStepsRequestSchema,
    any: fc.array(anyWireStep, { minLength: 1, maxLength: 3 }).map(encodeFrame),
    isAccepted: (frame) => agreedPass(frame) !== undefined,
  },
  AppendStep: { schema: AppendStepRequestSchema, any: anyStepRequest, isAccepted: agreedStepRequest },
  AppendBatch: { schema: AppendBatchRequestSchema, any: anyBatch, isAccepted: agreedBatch },
};

/** Changes arbitrary requests `count` times. Returns how many of the changed requests the pass accepted. */
export function passChanged({ schema, any, isAccepted }: Requests, count: number, seed: number): number {
  const choices = new Choices(seed);
  const requests = fc.sample(any, { seed, numRuns: 1000 }).filter((bytes) => bytes.length < 4096 && isAccepted(bytes));
  expect(requests.length, `requests that the pass accepts, seed ${seed}`).toBeGreaterThan(20);
  let accepted = 0;
  for (let i = 0; i < count; i += 1) {
    const changed = changeMessage(schema, requests[choices.below(requests.length)]!, choices);
    if (isAccepted(changed)) accepted += 1;
  }
  return accepted;
}
