import {
  create,
  type DescMethodServerStreaming,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import { type Code, ConnectError } from '@connectrpc/connect';
import { WatchCallSchema } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { AppendErrorSchema } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
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
 * Watches until the signal is aborted, with all other watches of the browser in one stream. Yields `begin` before each
 * snapshot: first, after a reconnect, and whenever another watch begins. Throws errors that a repetition cannot mend.
 */
export async function* watch<M extends DescMethodServerStreaming>(
  { parent, name, input, output }: M,
  request: MessageInitShape<M['input']>,
  { signal, onCut }: WatchEvents,
): AsyncGenerator<MessageShape<M['output']> | 'begin', void, undefined> {
  source ??= connectSource();
  const call = create(WatchCallSchema, {
    method: `${parent.typeName}/${name}`,
    request: toBinary(input, create(input, request)),
  });
  const events: WatchEvent[] = [];
  let wake = () => {};
  let isCut = false;
  const remove = source.add(toBinary(WatchCallSchema, call), (event) => {
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
      else if (event.kind === 'message') yield fromBinary(output, event.bytes) as MessageShape<M['output']>;
      else throw errorOf(event);
    }
  } finally {
    remove();
  }
}

function errorOf(event: Extract<WatchEvent, { readonly kind: 'failed' | 'refused' }>): ConnectError {
  if (event.kind === 'refused') return new ConnectError(event.error.message ?? 'the server refused the call');
  const { message, code } = fromBinary(AppendErrorSchema, event.bytes);
  return new ConnectError(message, code as Code);
}
