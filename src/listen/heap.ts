import { getHeapStatistics } from 'node:v8';

/** Smaller messages are decoded however full the heap is. */
const SMALL_BYTES = 4096;
/** A decoded message, with what handling it takes, has up to so many times its bytes. */
const GROWTH = 400;
/** Kept for calls that are served already, and for small ones: V8's young objects, or a part of a large heap. */
const KEPT_BYTES = 96 * 1024 * 1024;
const KEPT_PART = 0.15;

/** Bytes of the heap that large messages may fill. Node's `--max-old-space-size` decides. */
export const HEAP_BYTES = usableOf(getHeapStatistics().heap_size_limit);

/** Bytes that any decoded message may need: about 1 KiB for each of its values (`messageValues`). */
const LARGEST_DECODED_BYTES = Math.min(128 * 1024 * 1024, HEAP_BYTES / 4);

/** Thrown for a message whose decoded form may not fit into the heap. Other rooms recognise it by its code. */
export class HeapFullError extends Error {
  override readonly name = 'HeapFullError';
  readonly code = 'ERR_HEAP_FULL';

  constructor() {
    super(
      `The memory of the server is nearly full, so it accepts no message of more than ${SMALL_BYTES / 1024} KiB. ` +
        'Nothing of this one was stored. Retry later. The operator can raise --max-old-space-size of Node.',
    );
  }
}

/**
 * Throws HeapFullError if the heap may have no room for the decoded form of a message of so many bytes. Default of
 * `usedBytes`: as V8 reports it.
 */
export function requireHeap(messageBytes: number, usedBytes?: number): void {
  if (messageBytes <= SMALL_BYTES) return;
  const used = usedBytes ?? getHeapStatistics().used_heap_size;
  if (used + Math.min(messageBytes * GROWTH, LARGEST_DECODED_BYTES) > HEAP_BYTES) throw new HeapFullError();
}

function usableOf(limit: number): number {
  return Math.floor(limit - Math.max(KEPT_BYTES, limit * KEPT_PART));
}
