import { create, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { ConnectError } from '@connectrpc/connect';
import {
  type WatchResponse,
  WatchResponseSchema,
  WatchSubjectSchema,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { errorOfPart } from '../../../src/client/errors.ts';
import { RECONNECTED } from './reconnected.ts';
import { connectSource } from './shared.ts';
import type { WatchEvent, WatchSource } from './stream.ts';

export interface WatchEvents {
  readonly signal: AbortSignal;
  /** The connection was lost. Another one is opened. */
  readonly onCut: () => void;
}

let source: WatchSource | undefined;

/** Uses a source in which watches may have begun already. */
export function watchThrough(begun: WatchSource): void {
  source = begun;
}

/**
 * Watches a subject until the signal is aborted, with all other watches of the browser in one stream. Yields `begin`
 * before each snapshot: first, after a reconnect, and whenever another watch begins. Throws errors that a repetition
 * cannot mend.
 */
export async function* watch(
  subject: MessageInitShape<typeof WatchSubjectSchema>,
  { signal, onCut }: WatchEvents,
): AsyncGenerator<WatchResponse | 'begin', void, undefined> {
  source ??= connectSource();
  const events: WatchEvent[] = [];
  let wake = () => {};
  let isCut = false;
  const remove = source.add(toBinary(WatchSubjectSchema, create(WatchSubjectSchema, subject)), (event) => {
    // What came before a snapshot is part of it.
    if (event.kind === 'begin') events.length = 0;
    events.push(event);
    wake();
    if (event.kind === 'begin' && isCut) dispatchEvent(new Event(RECONNECTED));
    if (event.kind === 'begin' || event.kind === 'cut') isCut = event.kind === 'cut';
  });
  signal.addEventListener('abort', () => wake(), { once: true });
  try {
    while (!signal.aborted) {
      const event = events.shift();
      if (event === undefined) await new Promise<void>((resolve) => (wake = resolve));
      else if (event.kind === 'begin') yield 'begin';
      else if (event.kind === 'cut') onCut();
      else if (event.kind === 'refused') throw new ConnectError(event.error.message ?? 'the server refused the call');
      else yield responseOf(event.bytes);
    }
  } finally {
    remove();
  }
}

/** Throws the error with which the subject has ended. */
function responseOf(bytes: Uint8Array): WatchResponse {
  const response = fromBinary(WatchResponseSchema, bytes);
  if (response.error !== undefined) throw errorOfPart(response.error);
  return response;
}
