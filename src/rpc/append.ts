import { create } from '@bufbuild/protobuf';
import type { MethodImpl } from '@connectrpc/connect';
import {
  AppendAckSchema,
  AppendOpenedSchema,
  AppendSealedSchema,
  type AppendStepsRequest,
  type AppendStepsResponse,
  AppendStepsResponseSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../domain/errors.ts';
import { fromInstant, fromStatus } from '../service/convert/values.ts';
import type { Call } from '../service/method.ts';
import { type AppendEvent, type AppendSession, type Opened, openAppendSession } from '../stream/append/session.ts';
import { serverDraining } from '../stream/drain.ts';
import { bidiStream, type Wire } from './call.ts';
import { toAnabranchError } from './errors.ts';
import { toAppendFrame, toOpenRequest } from './frame.ts';
import type { Validator } from './validate.ts';

/**
 * The write stream. Frames are read and answers are written at the same time; a frame is only asked for when the session has room, so that HTTP/2
 * flow control holds the client back.
 */
export function appendSteps(wire: Wire): MethodImpl<typeof TrajectoryService.method.appendSteps> {
  return bidiStream(wire, TrajectoryService.method.appendSteps, async function* (requests, call) {
    const frames = requests[Symbol.asyncIterator]();
    const first = await firstFrame(wire, frames);
    if (first.done === true) throw invalidField('open', 'must be the first frame of the stream; the stream was empty');
    const open = toOpenRequest(first.value, wire.validator);
    // A grant is a write: who opens and leaves at once, by the thousand, must not hold up the others. Whether they left is known a turn later.
    await new Promise((resolve) => setImmediate(resolve));
    if (call.signal.aborted) return;
    const session = await openAppendSession(call.app, call.caller, open);
    yield* converse(session, frames, call, wire.validator);
  });
}

/** A client that has said nothing yet is told at once when the server shuts down. */
async function firstFrame<T>({ app }: Wire, frames: AsyncIterator<T>): Promise<IteratorResult<T>> {
  const draining = Promise.withResolvers<undefined>();
  const forget = app.drain.onBegin(() => draining.resolve(undefined));
  try {
    const first = await Promise.race([frames.next(), draining.promise]);
    if (first === undefined) throw serverDraining();
    return first;
  } finally {
    forget();
  }
}

async function* converse(
  session: AppendSession,
  frames: AsyncIterator<AppendStepsRequest>,
  { signal }: Call,
  validator: Validator,
): AsyncGenerator<AppendStepsResponse> {
  const reading = new Reading(session, frames, validator);
  const leave = () => reading.leave();
  signal.addEventListener('abort', leave, { once: true });
  if (signal.aborted) leave();
  try {
    yield fromOpened(session.opened);
    void reading.run();
    for await (const event of session.events()) yield fromEvent(event);
  } finally {
    signal.removeEventListener('abort', leave);
    leave();
  }
}

/** Takes frames from the wire to the session, until the client has sent everything, a frame cannot be read, or nobody wants more. */
class Reading {
  readonly #session: AppendSession;
  readonly #frames: AsyncIterator<AppendStepsRequest>;
  readonly #validator: Validator;
  #left = false;

  constructor(session: AppendSession, frames: AsyncIterator<AppendStepsRequest>, validator: Validator) {
    this.#session = session;
    this.#frames = frames;
    this.#validator = validator;
  }

  /** Never rejects: a frame that cannot be read ends the session, whose events say why. */
  async run(): Promise<void> {
    try {
      while (!this.#left) {
        const next = await this.#frames.next();
        if (next.done === true) break;
        if (!this.#session.push(toAppendFrame(next.value, this.#validator))) await this.#session.room();
      }
      this.#session.end();
    } catch (error) {
      if (!this.#left) this.#session.fail(toAnabranchError(error));
    }
  }

  /** The client is gone, or the session is over. What was read is still committed. */
  leave(): void {
    this.#left = true;
    this.#session.abandon();
  }
}

function fromOpened({ epoch, uid, nextStepNumber, status }: Opened): AppendStepsResponse {
  const opened = create(AppendOpenedSchema);
  opened.epoch = epoch;
  opened.uid = uid;
  opened.nextStepNumber = nextStepNumber;
  opened.status = fromStatus(status);
  const answer = create(AppendStepsResponseSchema);
  answer.opened = opened;
  return answer;
}

function fromEvent(event: AppendEvent): AppendStepsResponse {
  const answer = create(AppendStepsResponseSchema);
  if (event.kind === 'ack') {
    const ack = create(AppendAckSchema);
    ack.nextStepNumber = event.nextStepNumber;
    ack.commitTime = fromInstant(event.commitTime);
    ack.duplicateSteps = event.duplicateSteps;
    answer.ack = ack;
    return answer;
  }
  const sealed = create(AppendSealedSchema);
  sealed.status = fromStatus(event.status);
  sealed.message = event.message;
  sealed.nextStepNumber = event.nextStepNumber;
  if (event.sealTime !== undefined) sealed.sealTime = fromInstant(event.sealTime);
  answer.sealed = sealed;
  return answer;
}
