import { WatchedFiles } from '../watched_files.ts';
import { Mapping } from './mapping.ts';

export interface MappingEvents {
  /** Called for the first mapping, and for each that replaces it. */
  using(): void;
  /** Called once for a file that cannot be used. The mapping before stays in use. */
  refused(reason: string): void;
}

/** The mapping of a file, which is watched. */
export class MappingFile {
  readonly #files: WatchedFiles;
  #current: Mapping | undefined;

  constructor(file: string, everyMs: number, events: MappingEvents) {
    this.#files = new WatchedFiles([file], everyMs, {
      use: ([content]) => {
        this.#current = parse(file, String(content));
        events.using();
      },
      refuse: (reason) => events.refused(reason),
    });
  }

  /** Throws before the file was opened. */
  get current(): Mapping {
    if (this.#current === undefined) throw new Error('the mapping was not read yet');
    return this.#current;
  }

  /** Throws an error that says what is wrong with the file. */
  open(): Promise<void> {
    return this.#files.open();
  }

  reload(): Promise<void> {
    return this.#files.reload();
  }

  stop(): void {
    this.#files.stop();
  }
}

function parse(file: string, text: string): Mapping {
  try {
    return Mapping.parse(text);
  } catch (error) {
    throw new Error(`${file} is no mapping: ${(error as Error).message}`, { cause: error });
  }
}
