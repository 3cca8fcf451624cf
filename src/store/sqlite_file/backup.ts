import { createHash } from 'node:crypto';
import { type FileHandle, open, rm } from 'node:fs/promises';
import { backup, DatabaseSync } from 'node:sqlite';
import { setTimeout as wait } from 'node:timers/promises';
import { translateError } from '../sqlite/errors.ts';

/** A piece of a backup, or how far its copy has come. */
export interface BackupPiece {
  readonly copiedBytes: bigint;
  readonly totalBytes: bigint;
  /** The next bytes of the file. Undefined while the copy is made. */
  readonly chunk?: Uint8Array;
  /** SHA-256 of all bytes. Set in the last piece. */
  readonly digest?: string;
}

/** Pages that are copied in one go, on another thread. */
const PAGES = 1024;

/** Time between two reports, in milliseconds. */
const REPORT_MS = 200;

const CHUNK_BYTES = 256 * 1024;

/**
 * Copies a database that may be in use, and returns the bytes of the copy. The copy is of one moment, and writers
 * continue: it is read in one read transaction on a connection of its own. `copy` is a path for the copy; the file is
 * removed as soon as the copy is complete, or when the caller leaves. Errors: STORAGE_FULL.
 */
export async function* backUp(
  path: string,
  copy: string,
  signal: AbortSignal,
): AsyncGenerator<BackupPiece, void, undefined> {
  const progress = { copiedBytes: 0n, totalBytes: 0n };
  let file: FileHandle;
  try {
    yield* copyFile(path, copy, progress, signal);
    file = await open(copy, 'r');
  } catch (error) {
    throw translateError(error);
  } finally {
    // SQLite leaves the journal behind if the disk is full.
    for (const suffix of ['', '-journal']) await rm(`${copy}${suffix}`, { force: true });
  }
  try {
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    const hasher = createHash('sha256');
    for (;;) {
      signal.throwIfAborted();
      const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES);
      if (bytesRead === 0) break;
      hasher.update(chunk.subarray(0, bytesRead));
      yield { ...progress, chunk: Buffer.from(chunk.subarray(0, bytesRead)) };
    }
    yield { ...progress, digest: hasher.digest('hex') };
  } finally {
    await file.close();
  }
}

async function* copyFile(
  path: string,
  copy: string,
  progress: { copiedBytes: bigint; totalBytes: bigint },
  signal: AbortSignal,
): AsyncGenerator<BackupPiece, void, undefined> {
  const source = new DatabaseSync(path, { readOnly: true, timeout: 5000 });
  let isLeft = false;
  try {
    // Without a transaction around it, the copy would begin again after each write of another connection.
    source.exec('begin');
    const pageBytes = BigInt(Number(source.prepare('pragma page_size').get()?.page_size));
    progress.totalBytes = pageBytes * BigInt(Number(source.prepare('pragma page_count').get()?.page_count));
    let done = false;
    const copying = backup(source, copy, {
      rate: PAGES,
      progress: ({ totalPages, remainingPages }) => {
        if (isLeft || signal.aborted) throw new Error('the backup is no longer wanted');
        progress.copiedBytes = pageBytes * BigInt(totalPages - remainingPages);
      },
    }).finally(() => {
      done = true;
    });
    try {
      while (!done) {
        await Promise.race([copying, wait(REPORT_MS, undefined, { ref: false })]);
        yield { ...progress };
      }
      await copying;
      progress.copiedBytes = progress.totalBytes;
    } finally {
      isLeft = true;
      await copying.catch(() => undefined);
    }
  } finally {
    source.close();
  }
}
