import { type DescMessage, type MessageShape, toBinary } from '@bufbuild/protobuf';
import {
  type AppendOpen,
  type AppendStepsRequest,
  AppendStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { OpenRequest } from '../domain/append.ts';
import { invalidField } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { SUSPECT, screenStep } from '../service/trajectory/screen.ts';
import { requireStepSize, toSeal } from '../service/trajectory/single_step.ts';
import { toIncomingStep } from '../service/trajectory/step_in.ts';
import type { AppendFrame } from '../stream/append/session.ts';
import type { Validator } from './validate.ts';

/** What a step, an action or an observation takes in memory at least, however few bytes it had on the wire. */
const PART_BYTES = 128;

/** The first frame of an append stream. Errors: INVALID_REQUEST. */
export function toOpenRequest(frame: AppendStepsRequest, validator: Validator): OpenRequest {
  const { open, steps, seal } = frame;
  if (open === undefined) throw invalidField('open', 'must be the first frame of the stream, before any steps');
  if (steps.length > 0 || seal !== undefined) {
    throw invalidField('open', 'must stand alone in its frame: send steps and seal in the frames after it');
  }
  validator.check(AppendStepsRequestSchema, frame);
  return openRequest(open);
}

function openRequest(open: AppendOpen): OpenRequest {
  return {
    trajectoryId: open.trajectoryId,
    uid: open.uid === '' ? undefined : open.uid,
    writerId: open.writerId,
    takeOverEpoch: open.takeOverEpoch,
    expectedNextStepNumber: open.expectedNextStepNumber,
  };
}

/** Every frame after the first. Errors: INVALID_REQUEST. */
export function toAppendFrame(frame: AppendStepsRequest, validator: Validator): AppendFrame {
  const { open, steps, seal } = frame;
  if (open !== undefined) throw invalidField('open', 'must be sent once, as the first frame of the stream');
  if (steps.length === 0 && seal === undefined) {
    throw invalidField('steps', 'must hold at least one step, unless the frame carries seal');
  }
  let bytes = 0;
  let parts = 0;
  let suspect = seal !== undefined;
  for (let i = 0; i < steps.length; i += 1) {
    parts += 1 + steps[i]!.actions.length + steps[i]!.observations.length;
    const estimate = screenStep(steps[i]!);
    if (estimate === SUSPECT) suspect = true;
    else bytes += estimate;
  }
  if (suspect) {
    validator.check(AppendStepsRequestSchema, frame);
    bytes = sizeOf(AppendStepsRequestSchema, frame);
  }
  if (bytes > LIMITS.stepBytes) {
    for (let i = 0; i < steps.length; i += 1) requireStepSize(steps[i]!, `steps[${i}]`);
    bytes = Math.min(bytes, LIMITS.messageBytes);
  }
  return {
    steps: steps.map(toIncomingStep),
    seal: seal === undefined ? undefined : toSeal(seal, 'seal'),
    bytes: Math.max(bytes, parts * PART_BYTES),
  };
}

function sizeOf<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): number {
  return toBinary(schema, message).length;
}
