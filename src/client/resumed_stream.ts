import { Code, ConnectError } from '@connectrpc/connect';
import { Patience, systemTiming } from './retry.ts';
import { Silence } from './silence.ts';

/** Options of all reads that continue after a lost connection. */
export interface ResumeOptions {
  /** Makes the generator throw the signal's reason when it is aborted. Leaving the loop also ends the call. */
  readonly signal?: AbortSignal | undefined;
  /** Gives up after this many milliseconds without progress. Default 5 minutes. Infinity disables the limit. */
  readonly giveUpAfterMs?: number | undefined;
  /**
   * Reconnects when the server sends nothing for this many milliseconds. The server sends progress every 15 seconds.
   * Default 45,000.
   */
  readonly silenceMs?: number | undefined;
}

/**
 * Returns the messages of a call, and of further calls after errors that a retry can mend. `open` must continue after
 * the last message that was taken. Throws permanent errors, and DEADLINE_EXCEEDED after `giveUpAfterMs` without
 * progress.
 */
export async function* resumedStream<Message>(
  options: ResumeOptions & { readonly onCut?: ((error: unknown, retryInMs: number) => void) | undefined },
  open: (signal: AbortSignal) => AsyncIterable<Message>,
): AsyncGenerator<Message, void, undefined> {
  const timing = systemTiming();
  const patience = new Patience(options.giveUpAfterMs ?? 5 * 60_000, timing);
  for (;;) {
    // Leaving the loop, or silence, must also end the call on the server. The caller's signal does not cover these.
    const call = new AbortController();
    const signal = options.signal === undefined ? call.signal : AbortSignal.any([call.signal, options.signal]);
    const silence = new Silence(options.silenceMs ?? 45_000, (error) => call.abort(error));
    try {
      const messages = open(signal)[Symbol.asyncIterator]();
      for (;;) {
        // Only the wait for a message counts as silence, not the time that the caller works.
        silence.restart();
        const { done, value } = await messages.next();
        silence.pause();
        if (done === true) return;
        patience.progress();
        yield value;
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      const { delayMs } = patience.next(error);
      options.onCut?.(error, delayMs);
      await timing.sleep(delayMs, options.signal);
    } finally {
      silence.stop();
      call.abort(new ConnectError('the caller stopped reading', Code.Canceled));
    }
  }
}
