/** The file of an SQLite database, for work on the file as a whole. */
export interface DatabaseFile {
  /** V2: copies the file of one moment while writers continue, and then returns its bytes. Errors: STORAGE_FULL. */
  backUp(signal: AbortSignal): AsyncGenerator<BackupPiece, void, undefined>;
}

/** How far the copy has come, then its bytes, then their digest. */
export interface BackupPiece {
  readonly copiedBytes: bigint;
  readonly totalBytes: bigint;
  readonly chunk?: Uint8Array;
  /** SHA-256, set in the last piece. */
  readonly digest?: string;
}
