import type { AccessHeaders } from '../access.ts';
import { type WatchEvent, WatchStream } from './stream.ts';

/**
 * The worker that all tabs of a browser share. It holds the only stream of watches, or one for each key and namespace
 * that tabs call with.
 */

/** From a tab: adds a watch, removes it, or removes all, because the tab is closed or hidden. */
export type ToWorker =
  | { readonly id: number; readonly subject: Uint8Array; readonly headers: AccessHeaders }
  | { readonly id: number; readonly subject?: undefined }
  | 'leave';

export interface FromWorker {
  readonly id: number;
  readonly event: WatchEvent;
}

const streams = new Map<string, WatchStream>();

function streamOf(headers: AccessHeaders): WatchStream {
  const name = JSON.stringify(headers);
  const stream = streams.get(name) ?? new WatchStream(location.origin, headers);
  streams.set(name, stream);
  return stream;
}

addEventListener('connect', (event) => {
  const [port] = (event as MessageEvent).ports;
  if (port === undefined) return;
  const watches = new Map<number, () => void>();
  const leave = () => {
    for (const remove of watches.values()) remove();
    watches.clear();
  };
  port.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    if (data === 'leave') {
      leave();
    } else if (data.subject === undefined) {
      watches.get(data.id)?.();
      watches.delete(data.id);
    } else {
      const { id } = data;
      const tell = (told: WatchEvent) => port.postMessage({ id, event: told } satisfies FromWorker);
      watches.set(id, streamOf(data.headers).add(data.subject, tell));
    }
  };
  // A tab that crashes does not leave. Some browsers tell.
  port.addEventListener('close', leave);
});
