import { setTimeout as wait } from 'node:timers/promises';

/** How much free space was returned to the file system, and how much is left. */
export interface VacuumProgress {
  readonly freedBytes: bigint;
  readonly freeBytes: bigint;
}

/** Pages of one transaction, which blocks the thread and the writers of the server. */
const PAGES = 64;
/** Length of the pause after a transaction, as a multiple of its time. */
const PAUSE_PER_WORK = 2;

/**
 * Cuts `bytes` of free space off the end of the file, in short transactions. Between them, the writers of the server
 * have twice as much time as the last one took. What other calls free meanwhile is left to the next vacuum, so that
 * this one ends. The file becomes shorter when the log is copied into it. `cutPages` runs one transaction.
 */
export async function* vacuum(
  { bytes, pageBytes }: { readonly bytes: number; readonly pageBytes: number },
  cutPages: (pages: number) => Promise<void>,
  signal: AbortSignal,
): AsyncGenerator<VacuumProgress, void, undefined> {
  let todo = Math.max(0, Math.floor(bytes / pageBytes));
  let freed = 0;
  const progress = () => ({ freedBytes: BigInt(freed * pageBytes), freeBytes: BigInt(todo * pageBytes) });
  yield progress();
  while (todo > 0) {
    signal.throwIfAborted();
    const begun = performance.now();
    const pages = Math.min(todo, PAGES);
    await cutPages(pages);
    todo -= pages;
    freed += pages;
    yield progress();
    await wait((performance.now() - begun) * PAUSE_PER_WORK);
  }
}
