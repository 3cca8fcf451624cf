import { AnabranchError } from '../../domain/errors.ts';
import type { ShrinkableFile } from '../../stream/free_space.ts';

/** What AdminService needs besides the store. */
export interface DatabaseParts {
  /** Bytes on disk, and those of them that are free for new rows, if the database tells. */
  readonly sizeOf: () => Promise<{ readonly bytes: bigint; readonly freeBytes: bigint | undefined }>;
  /** Undefined on Postgres. */
  readonly file: DatabaseFile | undefined;
}

/** The file of an SQLite database, for work on the file as a whole. */
export interface DatabaseFile extends ShrinkableFile {
  /**
   * V2: copies the file of one moment while writers continue, and then returns its bytes. One copy at a time. Errors:
   * BACKUP_IN_PROGRESS, STORAGE_FULL.
   */
  backUp(signal: AbortSignal): AsyncGenerator<BackupPiece, void, undefined>;
  /** V3. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE. */
  vacuum(signal: AbortSignal, keepBytes: number): AsyncGenerator<VacuumProgress, void, undefined>;
}

/** How far the copy has come, then its bytes, then their digest. */
export interface BackupPiece {
  readonly copiedBytes: bigint;
  readonly totalBytes: bigint;
  readonly chunk?: Uint8Array;
  /** SHA-256, set in the last piece. */
  readonly digest?: string;
}

/** Free space that was returned, and that is left to return. */
export interface VacuumProgress {
  readonly freedBytes: bigint;
  readonly freeBytes: bigint;
}

/** Errors: SQLITE_ONLY. `instead` is what to do on Postgres. */
export function sqliteOnly(instead: string): AnabranchError {
  return new AnabranchError(
    'SQLITE_ONLY',
    `The database of this server is Postgres, and the call works on SQLite only. ${instead}: see docs/operations.md.`,
  );
}
