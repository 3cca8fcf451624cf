import { closeSync, existsSync, fstatSync, openSync, readSync, renameSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { AnabranchError } from '../../domain/errors.ts';
import { type Identity, identityOf, leadsTo } from './identity.ts';
import { hasLinks, isMounted, isMountPoint, MOUNTS } from './lock.ts';

/** Time between two checks of the file, in milliseconds. */
const CHECK_MS = 1000;
/** Time after which a fault is checked again, in milliseconds. Nothing is acked meanwhile. */
const AGAIN_MS = 100;

export class StorageLost extends AnabranchError {
  readonly #detail: string;

  constructor(detail: string) {
    super(
      'STORAGE_LOST',
      'The file of the database was removed, renamed, replaced, overwritten or given another name while the server used it. It is unknown whether the call was stored. The server stops. Retry the call when it runs again.',
    );
    this.#detail = detail;
  }

  /** One line for the operator: what happened, and the remedy. A getter, so that logs of the error leave it out. */
  get detail(): string {
    return this.#detail;
  }
}

export interface WatchedFile {
  /** The file as the operator named it, and without links. */
  readonly named: string;
  readonly path: string;
  /** See `FileLock`. */
  readonly descriptor: number;
}

/** How much the write-ahead log has of SQLite's file. */
export interface LogSize {
  /** Size of the commits since the log was restarted. The file of the log may be larger. */
  readonly bytes: number;
  /** Whether all of them are in the database file. */
  readonly isCopied: boolean;
}

/**
 * Watches the file of an open database, and the files beside it: if one of them is removed, renamed or replaced, or if
 * the file can be reached by another path, what is committed can be lost. Checks every second, and before an ack if the
 * last check is older. Only checks paths: closing a descriptor of a file drops SQLite's locks on it.
 */
export class FileWatch {
  readonly #file: WatchedFile;
  /** What each path led to. */
  readonly #found: ReadonlyMap<string, Identity>;
  readonly #lost = new AbortController();
  readonly #content: Content;
  readonly #timer: NodeJS.Timeout;
  #checkedAt = performance.now();
  /** Settles when a fault was checked again. */
  #doubt: Promise<void> | undefined;
  #mounted = false;
  #closed = false;

  /** SQLite must have opened the file, because it creates those beside it. */
  constructor(file: WatchedFile) {
    this.#file = file;
    const { path, named } = file;
    const paths = [path, resolve(named), `${path}-wal`, `${path}-shm`, `${path}.lock`];
    this.#found = new Map(paths.map((each) => [each, identityOf(each)]));
    this.#content = new Content(path, file.descriptor);
    this.#timer = setInterval(() => void this.#watch(), CHECK_MS).unref();
  }

  /** Aborted with a StorageLost, which every write then fails with. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Must not be read beside a commit of this process. */
  get log(): LogSize {
    return this.#content.log();
  }

  /** Must be awaited after a commit, before its ack. Undefined means that there is nothing to wait for. */
  checked(): Promise<void> | undefined {
    this.lost.throwIfAborted();
    if (this.#doubt === undefined && performance.now() - this.#checkedAt < CHECK_MS) return undefined;
    return this.#check();
  }

  /** Returns the error to report for one of SQLite, which may be the first sign of a loss. */
  async explain(error: unknown): Promise<unknown> {
    if (error instanceof AnabranchError) return error;
    this.lost.throwIfAborted();
    await this.#check();
    return error;
  }

  /** Must be called before SQLite closes the file, because it then removes its log. */
  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
  }

  /** Must be called after SQLite has closed the file. */
  release(): void {
    this.#content.release();
  }

  async #watch(): Promise<void> {
    // Acks that wait for it get the error.
    this.#check()?.catch(() => {});
    const mounts = await readFile(MOUNTS, 'utf8').catch(() => '');
    this.#mounted = isMountPoint(this.#file.path, mounts);
    if (this.#mounted) this.#check()?.catch(() => {});
  }

  #check(): Promise<void> | undefined {
    this.#checkedAt = performance.now();
    if (this.#doubt === undefined && this.#fault() === undefined) return undefined;
    this.#doubt ??= this.#checkAgain().finally(() => {
      this.#doubt = undefined;
    });
    return this.#doubt;
  }

  async #checkAgain(): Promise<void> {
    await wait(AGAIN_MS);
    const fault = this.#fault();
    if (fault === undefined) return;
    this.close();
    this.#lost.abort(new StorageLost(fault + this.#setLogAside()));
    this.lost.throwIfAborted();
  }

  #fault(): string | undefined {
    if (this.#closed) return undefined;
    const { path, descriptor } = this.#file;
    const { nlink } = fstatSync(descriptor);
    // If the file is emptied, SQLite removes its log.
    const cut = leadsTo(path, this.#found.get(path)!) ? this.#content.overwritten() : undefined;
    if (cut !== path) {
      for (const [each, found] of this.#found) {
        if (leadsTo(each, found)) continue;
        return `${each} was removed, renamed or replaced while the server used it, so nothing more is acked, and the server stops. Put the file back, or restore a backup, and start again.`;
      }
      if (nlink > 1) return hasLinks(path, nlink);
    }
    if (cut !== undefined)
      return `${cut} was emptied, shortened or overwritten while the server used it, so nothing more is acked, and the server stops. Restore a backup, and start again.`;
    return this.#mounted ? isMounted(path) : undefined;
  }

  /**
   * If the file cannot come back, renames its log: SQLite would apply it to whatever file has the name at the next
   * start. If the file was only renamed, the log stays for when it is put back. Returns what to tell the operator.
   */
  #setLogAside(): string {
    const { path, descriptor } = this.#file;
    const wal = `${path}-wal`;
    const [own, log] = [this.#found.get(path)!, this.#found.get(wal)!];
    const isGone = fstatSync(descriptor).nlink === 0 || existsSync(path);
    if (leadsTo(path, own) || !isGone || !leadsTo(wal, log)) return '';
    try {
      renameSync(wal, `${wal}.lost`);
      return ` The log of the lost file is now ${wal}.lost.`;
    } catch (error) {
      return ` Remove ${wal} before, which belongs to the lost file (it could not be renamed: ${(error as Error).message}).`;
    }
  }
}

/** Positions in SQLite's files: https://www.sqlite.org/fileformat.html, https://www.sqlite.org/walformat.html. */
const FILE = { header: 32, pageSize: 16, pageCount: 28 } as const;
const INDEX = { bytes: 100, pageSize: 14, frames: 16, salts: 32, copiedFrames: 96 } as const;
const LOG = { header: 32, salts: 16, frameHeader: 24 } as const;
const SALT_BYTES = 8;

interface Frame {
  readonly salts: Buffer;
  readonly position: number;
  readonly header: Buffer;
}

/**
 * Finds out whether another program has emptied, shortened or overwritten the file or its log, which SQLite notices
 * late or never: it writes behind the hole, and the next start finds a log that ends before. What the index of the log
 * says must be there, and so must the last frame that was seen.
 */
export class Content {
  readonly #path: string;
  readonly #file: number;
  readonly #log: number;
  readonly #index: number;
  #last: Frame | undefined;

  /** SQLite must have opened the file. `file` is a descriptor of it. */
  constructor(path: string, file: number) {
    this.#path = path;
    this.#file = file;
    this.#log = openSync(`${path}-wal`, 'r');
    this.#index = openSync(`${path}-shm`, 'r');
  }

  /** Must not run beside a commit of this process. */
  log(): LogSize {
    const index = read(this.#index, 0, INDEX.bytes);
    const frames = index.readUInt32LE(INDEX.frames);
    return { bytes: frames * frameBytes(index), isCopied: index.readUInt32LE(INDEX.copiedFrames) >= frames };
  }

  /**
   * Returns the path of what was overwritten. Must not run beside a commit of this process. The log may be copied
   * meanwhile, because SQLite counts frames as copied when the file has them.
   */
  overwritten(): string | undefined {
    const index = read(this.#index, 0, INDEX.bytes);
    if (index.length < INDEX.bytes) return `${this.#path}-shm`;
    // The index has the byte order of the machine, which is little-endian wherever Node runs.
    const frames = index.readUInt32LE(INDEX.frames);
    if (!this.#isFileWhole(index.readUInt32LE(INDEX.copiedFrames) >= frames)) return this.#path;
    return frames === 0 || this.#isLogWhole(index, frames) ? undefined : `${this.#path}-wal`;
  }

  /** Must be called after SQLite has closed the file: closing a descriptor of the index drops SQLite's locks on it. */
  release(): void {
    closeSync(this.#log);
    closeSync(this.#index);
  }

  /** A full disk can interrupt the copying of the log, and leaves the file short until it is copied. */
  #isFileWhole(isCopied: boolean): boolean {
    const header = read(this.#file, 0, FILE.header);
    if (header.length < FILE.header) return false;
    const bytes = header.readUInt32BE(FILE.pageCount) * pageBytes(header.readUInt16BE(FILE.pageSize));
    return !isCopied || fstatSync(this.#file).size >= bytes;
  }

  #isLogWhole(index: Buffer, frames: number): boolean {
    const salts = index.subarray(INDEX.salts, INDEX.salts + SALT_BYTES);
    if (!read(this.#log, LOG.salts, SALT_BYTES).equals(salts)) return false;
    const last = this.#last;
    if (last?.salts.equals(salts) && !read(this.#log, last.position, LOG.frameHeader).equals(last.header)) return false;
    if (fstatSync(this.#log).size < LOG.header + frames * frameBytes(index)) return false;
    const position = LOG.header + (frames - 1) * frameBytes(index);
    this.#last = { salts, position, header: read(this.#log, position, LOG.frameHeader) };
    return true;
  }
}

function frameBytes(index: Buffer): number {
  return LOG.frameHeader + pageBytes(index.readUInt16LE(INDEX.pageSize));
}

/** The largest size of a page does not fit into its field. */
function pageBytes(stored: number): number {
  return stored === 1 ? 65_536 : stored;
}

function read(file: number, position: number, bytes: number): Buffer {
  const buffer = Buffer.alloc(bytes);
  return buffer.subarray(0, readSync(file, buffer, { position }));
}
