import { create } from '@bufbuild/protobuf';
import {
  type ServerService,
  type WatchResponse,
  WatchResponseSchema,
  type WatchSubject,
  WatchSubjectSchema,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { AnabranchError } from '../../domain/errors.ts';
import { joined } from '../../stream/joined.ts';
import { LookSchedule } from '../../stream/look_schedule.ts';
import type { Call, ServerStream } from '../method.ts';
import { watchSubject } from './watch_subject.ts';

/** Watches several subjects in one stream (M5). */
export const watch: ServerStream<typeof ServerService.method.watch> = {
  async *messages({ subjects }, call) {
    const stop = new AbortController();
    const schedule = new LookSchedule(call.app.changes, call.app.settings);
    const signal = AbortSignal.any([call.signal, stop.signal]);
    const watches = Object.entries(subjects).map(([name, subject]) => responsesOf(name, subject, call, signal));
    try {
      for await (const response of joined(watches, () => stop.abort())) {
        // A tick, or a look that found nothing new, is a sign of life, if one is due.
        if (response === undefined && !schedule.progressDue) continue;
        schedule.sent();
        yield response ?? create(WatchResponseSchema);
      }
    } finally {
      schedule.stop();
    }
  },
};

/** Yields undefined after a look that found nothing new, and at ticks. */
async function* responsesOf(
  name: string,
  subject: WatchSubject,
  call: Call,
  signal: AbortSignal,
): AsyncGenerator<WatchResponse | undefined, void, undefined> {
  const leave = call.app.load?.enter('watchersPerPrincipal');
  try {
    call.check(WatchSubjectSchema, subject);
    for await (const told of watchSubject(subject, call, signal)) {
      yield told && create(WatchResponseSchema, { name, ...told.news, caughtUp: told.caughtUp });
    }
  } catch (error) {
    if (!isOfSubject(error)) throw error;
    yield create(WatchResponseSchema, { name, error: call.errorOf(error, WatchSubjectSchema, subject) });
  } finally {
    leave?.();
  }
}

/** Whether an error is about one subject. Others end the whole call. */
function isOfSubject(error: unknown): boolean {
  return error instanceof AnabranchError && /^INVALID_|_NOT_FOUND$|_DELETED$/.test(error.reason);
}
