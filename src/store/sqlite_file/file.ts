import { randomUUID } from 'node:crypto';
import { readdirSync, realpathSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { AnabranchError } from '../../domain/errors.ts';
import type { Store } from '../contract/store.ts';
import { announceHolder } from '../file_guard/lock.ts';
import { type BackupPiece, backUp } from './backup.ts';
import { type VacuumProgress, vacuum } from './vacuum.ts';

/** What the store of the file does for `SqliteFile`, because it has the only writing connection. */
export type FileStore = Pick<Store, 'cutFreePages' | 'emptyWal'>;

/** The file of a running server, for work on the file as a whole. Reads on connections of its own. */
export class SqliteFile {
  readonly #path: string;
  /** Whether a backup has a copy of the file, which has no name once it is complete. */
  #hasCopy = false;
  readonly #store: FileStore;

  /** The store must hold the lock of the file. Removes copies that a process left behind when it was killed. */
  constructor(path: string, store: FileStore) {
    this.#path = realpathSync(path);
    this.#store = store;
    const [folder, prefix] = [dirname(this.#path), `${basename(this.#path)}${COPY}`];
    for (const name of readdirSync(folder)) if (name.startsWith(prefix)) rmSync(join(folder, name), { force: true });
  }

  /** Tells processes that find the file in use where this one serves it. */
  announce(address: string): void {
    announceHolder(this.#path, address);
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
  async size(): Promise<{ readonly bytes: bigint; readonly freeBytes: bigint; readonly pageBytes: bigint }> {
    const database = new DatabaseSync(this.#path, { readOnly: true, timeout: 5000 });
    const pragma = (name: string) => BigInt(Number(Object.values(database.prepare(`pragma ${name}`).get() ?? {})[0]));
    try {
      const pageBytes = pragma('page_size');
      const [bytes, freeBytes] = [pageBytes * pragma('page_count'), pageBytes * pragma('freelist_count')];
      return { bytes, freeBytes, pageBytes };
    } finally {
      database.close();
    }
  }

  /** V3: leaves about `keepBytes` of free space. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE. */
  async *vacuum(signal: AbortSignal, keepBytes: number): AsyncGenerator<VacuumProgress, void, undefined> {
    const { freeBytes, pageBytes } = await this.size();
    const surplus = { bytes: Number(freeBytes) - keepBytes, pageBytes: Number(pageBytes) };
    yield* vacuum(surplus, (pages) => this.#store.cutFreePages(pages), signal);
    await this.shorten();
  }

  /** The file becomes shorter when the log is copied into it, which readers of older rows delay. */
  async shorten(): Promise<void> {
    const { bytes } = await this.size();
    if (statSync(this.#path).size > bytes) await this.#store.emptyWal();
  }
}

const COPY = '.backup-';
