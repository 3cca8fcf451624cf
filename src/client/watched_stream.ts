import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { WatchResponse, WatchSubjectSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { errorOfPart } from './errors.ts';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

/** Options of all watches. */
export interface WatchedOptions extends ResumeOptions {
  /** Called for every error that is retried. Must not throw. */
  readonly onCut?: ((error: unknown, retryInMs: number) => void) | undefined;
}

/** The call that watches need. */
export interface WatchCalls {
  readonly server: Pick<ClientCalls['server'], 'watch'>;
}

/** What a client watches. */
export type SubjectInit = MessageInitShape<typeof WatchSubjectSchema>;

/** Returns the responses of one call about one subject. Throws the error of the subject. */
export async function* watchedOnce(
  { server }: WatchCalls,
  subject: SubjectInit,
  signal: AbortSignal,
): AsyncGenerator<WatchResponse, void, undefined> {
  for await (const response of server.watch({ subjects: { subject } }, { signal })) {
    if (response.error !== undefined) throw errorOfPart(response.error);
    yield response;
  }
}

/**
 * Returns the responses of a watch, and of further calls after lost connections. Each call begins with a new snapshot,
 * before which `begin` is called. A server that ends a watch without an error is leaving.
 */
export async function* watchedStream(
  client: WatchCalls,
  options: WatchedOptions,
  subject: SubjectInit,
  begin: () => void,
): AsyncGenerator<WatchResponse, void, undefined> {
  yield* resumedStream(options, async function* (signal) {
    begin();
    yield* watchedOnce(client, subject, signal);
    throw serverLeft();
  });
}

export function serverLeft(): ConnectError {
  return new ConnectError('the server ended the watch', Code.Unavailable);
}
