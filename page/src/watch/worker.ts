import { type WatchEvent, WatchStream } from './stream.ts';

/** The worker that all tabs of a browser share. It holds the only stream of watches. */

/** From a tab: adds a watch, removes it, or removes all, because the tab is closed or hidden. */
export type ToWorker =
  | { readonly id: number; readonly subject: Uint8Array }
  | { readonly id: number; readonly subject?: undefined }
  | 'leave';

export interface FromWorker {
  readonly id: number;
  readonly event: WatchEvent;
}

const stream = new WatchStream(location.origin);

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
      watches.set(id, stream.add(data.subject, tell));
    }
  };
  // A tab that crashes does not leave. Some browsers tell.
  port.addEventListener('close', leave);
});
