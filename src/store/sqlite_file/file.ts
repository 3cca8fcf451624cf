import { randomUUID } from 'node:crypto';
import { readdirSync, realpathSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { AnabranchError } from '../../domain/errors.ts';
import { type BackupPiece, backUp } from './backup.ts';
import { type VacuumProgress, vacuum } from './vacuum.ts';

/** The file of a running server, for work on the file as a whole. Uses connections of its own. */
export class SqliteFile {
  readonly #path: string;
  /** Whether a backup has a copy of the file, which has no name once it is complete. */
  #hasCopy = false;
  readonly #emptyWal: () => Promise<void>;

  /**
   * The server must hold the lock of the file. Removes copies that an earlier process left behind when it was killed.
   * `emptyWal` copies the write-ahead log into the file, as far as no other program reads older rows.
   */
  constructor(path: string, emptyWal: () => Promise<void>) {
    this.#path = realpathSync(path);
    this.#emptyWal = emptyWal;
    const [folder, prefix] = [dirname(this.#path), `${basename(this.#path)}${COPY}`];
    for (const name of readdirSync(folder)) if (name.startsWith(prefix)) rmSync(join(folder, name), { force: true });
  }

  /** V2. Needs room for a copy of the database next to it. Errors: BACKUP_IN_PROGRESS, STORAGE_FULL. */
  async *backUp(signal: AbortSignal): AsyncGenerator<BackupPiece, void, undefined> {
    if (this.#hasCopy) {
      throw new AnabranchError(
        'BACKUP_IN_PROGRESS',
        'Another caller is backing up this database, and the server makes one copy at a time. Call again when that backup has ended.',
      );
    }
    this.#hasCopy = true;
    try {
      yield* backUp(this.#path, `${this.#path}${COPY}${randomUUID()}`, signal);
    } finally {
      this.#hasCopy = false;
    }
  }

  /** Bytes of the file, with those that are only in its log, and those of them that are free for new rows. */
  async size(): Promise<{ readonly bytes: bigint; readonly freeBytes: bigint }> {
    const database = new DatabaseSync(this.#path, { readOnly: true, timeout: 5000 });
    const pragma = (name: string) => BigInt(Number(Object.values(database.prepare(`pragma ${name}`).get() ?? {})[0]));
    try {
      const page = pragma('page_size');
      return { bytes: page * pragma('page_count'), freeBytes: page * pragma('freelist_count') };
    } finally {
      database.close();
    }
  }

  /** V3: leaves about `keepBytes` of free space. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE. */
  async *vacuum(signal: AbortSignal, keepBytes: number): AsyncGenerator<VacuumProgress, void, undefined> {
    yield* vacuum(this.#path, signal, keepBytes);
    await this.shorten();
  }

  /** The file becomes shorter when the log is copied into it, which readers of older rows delay. */
  async shorten(): Promise<void> {
    const { bytes } = await this.size();
    if (statSync(this.#path).size > bytes) await this.#emptyWal();
  }
}

const COPY = '.backup-';
