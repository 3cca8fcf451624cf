import { WatchedFiles } from '../watched_files.ts';
import { KeySet } from './key_set.ts';
import type { KeySource, KeySourceEvents } from './key_source.ts';

/** The keys of an issuer in a file, which is watched. */
export class KeyFile implements KeySource {
  readonly #files: WatchedFiles;
  current: KeySet | undefined;

  constructor(file: string, everyMs: number, events: KeySourceEvents) {
    this.#files = new WatchedFiles([file], everyMs, {
      use: ([content]) => {
        this.current = parse(file, String(content));
        events.using(this.current);
      },
      refuse: (reason) => events.failed(reason),
    });
  }

  /** The file is watched. */
  renew(): undefined {
    return undefined;
  }

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

function parse(file: string, text: string): KeySet {
  try {
    return KeySet.parse(text);
  } catch (error) {
    throw new Error(`${file} cannot be used: ${(error as Error).message}.`, { cause: error });
  }
}
