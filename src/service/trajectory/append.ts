import { toBinary } from '@bufbuild/protobuf';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AppendOpened,
  type AppendSealed,
  type AppendStepsRequest,
  AppendStepsRequestSchema,
  type AppendStepsResponse,
  TrajectoryService,
  type StepTag as WireTag,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { OpenRequest, SealRequest, StepTag } from '../../domain/append.ts';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import {
  PACKED_STEP_BYTES,
  PackedFrame,
  type PackedStep,
  withInlineStates,
} from '../../domain/step_codec/packed_step.ts';
import type { TrajectoryCreation } from '../../store/contract/trajectory.ts';
import {
  type AppendEvent,
  type AppendFrame,
  type AppendSession,
  type Opened,
  openAppendSession,
} from '../../stream/append/session.ts';
import { fromInstant, fromStatus, required } from '../convert/values.ts';
import type { BidiStream, Call } from '../method.ts';
import { toCreation } from './creation.ts';
import { SUSPECT, screenStep } from './screen.ts';
import { requireStepSize, toSeal } from './single_step.ts';
import { packSteps } from './step_in.ts';

/** A frame as it came, or its steps if it was not decoded. */
type Frame = AppendStepsRequest | PackedFrame;

/**
 * Appends a stream of frames (W1 to W5). Reads frames while responses are written. Reads a frame only when the session
 * has room, so that HTTP/2 flow control slows down the client.
 */
export const appendSteps: BidiStream<typeof TrajectoryService.method.appendSteps, Frame> = async function* (
  requests,
  call,
) {
  const frames = requests[Symbol.asyncIterator]();
  // A client that has sent nothing yet learns at once that the server shuts down.
  const first = await call.app.drain.race(frames.next());
  if (first.done === true) throw invalidField('open', 'must be the first frame of the stream; the stream was empty');
  const { open, create } = toOpening(first.value, call);
  // A grant is a write, so clients that disconnect at once must not get one. The event loop learns of a disconnection
  // in its next iteration.
  await new Promise((resolve) => setImmediate(resolve));
  if (call.signal.aborted) return;
  const session = await openAppendSession(call.app, call.caller, open, create);
  if (session.opened.tookOver) call.tookOver(TrajectoryService.method.appendSteps, open.trajectoryId);
  yield* converse(session, frames, call);
};

async function* converse(
  session: AppendSession,
  frames: AsyncIterator<Frame>,
  call: Call,
): AsyncGenerator<AppendStepsResponse> {
  // Frames that were read are committed even if the client disconnects.
  const leave = () => session.abandon();
  call.signal.addEventListener('abort', leave, { once: true });
  if (call.signal.aborted) leave();
  try {
    yield responseOf({ opened: openedMessage(session.opened) });
    void readFrames(session, frames, call);
    for await (const event of session.events()) yield fromEvent(event);
  } finally {
    call.signal.removeEventListener('abort', leave);
    leave();
  }
}

/**
 * Passes frames to the session until the client has sent all, a frame is invalid, or the session accepts no more. Never
 * rejects: the session's events throw the error of an invalid frame.
 */
async function readFrames(session: AppendSession, frames: AsyncIterator<Frame>, call: Call): Promise<void> {
  try {
    while (session.accepting) {
      const next = await frames.next();
      if (next.done === true) break;
      if (!session.push(toAppendFrame(next.value, call))) await session.room();
    }
    session.end();
    // Ends the slot of a last frame that was refused, even if the client does not read the error.
    await frames.return?.();
  } catch (error) {
    session.fail(error);
  }
}

/** Converts the first frame of an append stream. Errors: INVALID_REQUEST, DIGEST_MISMATCH. */
function toOpening(
  frame: Frame,
  { app, check }: Call,
): { readonly open: OpenRequest; readonly create: TrajectoryCreation | undefined } {
  if (frame instanceof PackedFrame || frame.open === undefined)
    throw invalidField('open', 'must be the first frame of the stream, before any steps');
  const { open, steps, tags, seal } = frame;
  if (steps.length > 0 || tags.length > 0 || seal !== undefined) {
    throw invalidField('open', 'must be the only field of its frame: send steps, tags and seal in later frames');
  }
  check(AppendStepsRequestSchema, frame);
  const { trajectoryId, uid, writerId, takeOverEpoch, expectedNextStepNumber } = open;
  return {
    open: { trajectoryId, uid: uid === '' ? undefined : uid, writerId, takeOverEpoch, expectedNextStepNumber },
    create: toCreation(app, open, 'open.'),
  };
}

/** Minimum size of a state of a packed step in memory. */
const PACKED_STATE_BYTES = 300;

/** Maximum size of a tag of a message. */
const TAG_BYTES = 144;

/** Converts a frame after the first. Errors: INVALID_REQUEST. */
export function toAppendFrame(frame: Frame, { check }: Pick<Call, 'check'>): AppendFrame {
  if (frame instanceof PackedFrame) return packedFrame(frame.steps, frame.bytes, NO_TAGS, undefined);
  const { open, steps, tags, seal } = frame;
  if (open !== undefined) throw invalidField('open', 'must be sent once, as the first frame of the stream');
  let bytes = 0;
  let suspect = false;
  for (let i = 0; i < steps.length; i += 1) {
    const estimate = screenStep(steps[i]!);
    if (estimate === SUSPECT) suspect = true;
    else bytes += estimate;
  }
  if (suspect) {
    check(AppendStepsRequestSchema, frame);
    bytes = toBinary(AppendStepsRequestSchema, frame).length;
  } else if (tags.length > 0 || seal !== undefined) {
    check(AppendStepsRequestSchema, { ...frame, steps: [] });
    bytes += TAG_BYTES * tags.length + 3 * (seal?.message.length ?? 0);
  }
  if (bytes > LIMITS.stepBytes) {
    for (let i = 0; i < steps.length; i += 1) requireStepSize(steps[i]!, `steps[${i}]`);
    bytes = Math.min(bytes, LIMITS.messageBytes);
  }
  return packedFrame(
    packSteps(steps),
    bytes,
    tags.length === 0 ? NO_TAGS : toTags(tags, steps),
    seal === undefined ? undefined : toSeal(seal, 'seal'),
  );
}

function packedFrame(
  steps: readonly PackedStep[],
  encodedBytes: number,
  tags: readonly StepTag[],
  seal: SealRequest | undefined,
): AppendFrame {
  const states = steps.reduce((count, step) => count + step.states.length, 0);
  const bytes = Math.max(encodedBytes, steps.length * PACKED_STEP_BYTES + states * PACKED_STATE_BYTES);
  return { ...withInlineStates(steps), tags, seal, bytes };
}

const NO_TAGS: readonly StepTag[] = [];

/** Converts the tags of a message, in order of step number. Errors: INVALID_REQUEST. */
function toTags(tags: readonly WireTag[], steps: readonly Pick<Step, 'stepNumber'>[]): StepTag[] {
  const counts = new Map(steps.map(({ stepNumber }) => [stepNumber, 0]));
  const converted = tags.map(({ name, stepNumber }, i): StepTag => {
    const field = `tags[${i}].step_number`;
    const number = required(stepNumber, field);
    const count = counts.get(number);
    if (count === undefined)
      throw invalidField(field, `must be the number of a step of the same message, got ${number}`);
    if (count >= LIMITS.tagsPerStep) {
      throw invalidField(
        'tags',
        `must have at most ${LIMITS.tagsPerStep} tags for a step, but step ${number} has more`,
      );
    }
    counts.set(number, count + 1);
    return { name, stepNumber: number };
  });
  return converted.sort((a, b) => Number(a.stepNumber - b.stepNumber));
}

function openedMessage({ epoch, uid, nextStepNumber, status }: Opened): AppendOpened {
  return { $typeName: 'anabranch.v1.AppendOpened', epoch, uid, nextStepNumber, status: fromStatus(status) };
}

function fromEvent(event: AppendEvent): AppendStepsResponse {
  const { nextStepNumber } = event;
  if (event.kind === 'ack') {
    const { duplicateSteps } = event;
    const commitTime = fromInstant(event.commitTime);
    return responseOf({ ack: { $typeName: 'anabranch.v1.AppendAck', nextStepNumber, commitTime, duplicateSteps } });
  }
  const { message, sealTime } = event;
  const status = fromStatus(event.status);
  const sealed: AppendSealed = { $typeName: 'anabranch.v1.AppendSealed', status, message, nextStepNumber };
  return responseOf({ sealed: sealTime === undefined ? sealed : { ...sealed, sealTime: fromInstant(sealTime) } });
}

function responseOf(part: Pick<AppendStepsResponse, 'opened' | 'ack' | 'sealed'>): AppendStepsResponse {
  return { $typeName: 'anabranch.v1.AppendStepsResponse', ...part };
}
