import { isMessage, type Message } from '@bufbuild/protobuf';
import { AppendBatchRequestSchema, AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { PackedFrame } from '../domain/step_codec/packed_step.ts';

/** A message, or the steps of one that need not be decoded. */
export type Received = Message | PackedFrame;

/** As many steps as a group commit takes. */
const MANY_STEPS = 4096;

/**
 * Whether a message takes many times its bytes until its steps are stored: 131,072 empty steps fit into 256 KiB and
 * take 50 MiB. Such a message keeps its slot in the decode queue until then, so that few of them are in memory at once.
 */
export function isLargeInMemory(message: Received): boolean {
  return stepsOf(message) > MANY_STEPS;
}

function stepsOf(message: Received): number {
  if (message instanceof PackedFrame || isMessage(message, AppendStepsRequestSchema)) return message.steps.length;
  if (!isMessage(message, AppendBatchRequestSchema)) return 0;
  return message.entries.reduce((count, { steps }) => count + steps.length, 0);
}
