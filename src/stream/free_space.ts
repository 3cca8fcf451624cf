import { Chore, type Reporting, type Stopped } from './chore.ts';

/** A database file that keeps the space of deleted rows until it is returned to the file system. */
export interface ShrinkableFile {
  /** Bytes of the file, and those of them that are free for new rows. */
  size(): Promise<{ readonly bytes: bigint; readonly freeBytes: bigint }>;
  /** V3: returns free space in short transactions, except about `keepBytes`. */
  vacuum(signal: AbortSignal, keepBytes: number): AsyncIterable<{ readonly freedBytes: bigint }>;
  /** Returns the space that an earlier vacuum could not return, because another program was reading it. */
  shorten(): Promise<void>;
}

/** Free space that stays in the file, so that writers need not extend it again: a share of what is in use. */
const KEPT_SHARE = 1 / 16;
/** The same while segments are merged, because that frees space, and appends take it, all the time. */
const KEPT_SHARE_WHILE_MERGING = 1 / 2;
/** Lower bound of that space. */
const LEAST_KEPT_BYTES = 4 * 1024 * 1024;
/** Space is returned when so many times as much is free. */
const MOST_KEPT = 2;

/** Returns free space to the file system in the background. */
export function startReturningSpace(
  file: ShrinkableFile,
  reporting: Reporting,
  freeSpaceMs: number,
  isMerging: () => boolean,
): Chore {
  return new Chore('return of free space', reporting, async (stopped) => ({
    freedBytes: await returnSpace(file, isMerging(), stopped),
  })).every(freeSpaceMs);
}

/** Returns free space, if there is much of it, until `stopped` returns true. Returns how many bytes. */
export async function returnSpace(file: ShrinkableFile, isMerging: boolean, stopped: Stopped): Promise<bigint> {
  await file.shorten();
  const { bytes, freeBytes } = await file.size();
  const used = Number(bytes - freeBytes);
  const kept = Math.max(used * (isMerging ? KEPT_SHARE_WHILE_MERGING : KEPT_SHARE), LEAST_KEPT_BYTES);
  let freed = 0n;
  if (stopped() || Number(freeBytes) < kept * MOST_KEPT) return freed;
  for await (const { freedBytes } of file.vacuum(new AbortController().signal, kept)) {
    freed = freedBytes;
    if (stopped()) break;
  }
  return freed;
}
