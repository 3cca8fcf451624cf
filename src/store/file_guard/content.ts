import { closeSync, fstatSync, openSync, readSync } from 'node:fs';

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

  /** Returns the path of what was overwritten. Must not run beside a write of this process. */
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
    const frameBytes = LOG.frameHeader + pageBytes(index.readUInt16LE(INDEX.pageSize));
    if (fstatSync(this.#log).size < LOG.header + frames * frameBytes) return false;
    const position = LOG.header + (frames - 1) * frameBytes;
    this.#last = { salts, position, header: read(this.#log, position, LOG.frameHeader) };
    return true;
  }
}

/** The largest size of a page does not fit into its field. */
function pageBytes(stored: number): number {
  return stored === 1 ? 65_536 : stored;
}

function read(file: number, position: number, bytes: number): Buffer {
  const buffer = Buffer.alloc(bytes);
  return buffer.subarray(0, readSync(file, buffer, { position }));
}
