import { Code, ConnectError } from '@connectrpc/connect';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

/** Options of watchTree(), watchRuns() and watchTrajectories(). */
export interface WatchedOptions extends ResumeOptions {
  /** Called for every error that is retried. Must not throw. */
  readonly onCut?: (error: unknown, retryInMs: number) => void;
}

/**
 * Returns the messages of a watch, and of further calls after lost connections. Each call begins with a new snapshot,
 * so `open` must forget what it learned of the call before. A server that ends a watch without an error is leaving.
 */
export async function* watchedStream<Message>(
  options: WatchedOptions,
  open: (signal: AbortSignal) => AsyncIterable<Message>,
): AsyncGenerator<Message, void, undefined> {
  yield* resumedStream(options, async function* (signal) {
    yield* open(signal);
    throw new ConnectError('the server ended the watch', Code.Unavailable);
  });
}
