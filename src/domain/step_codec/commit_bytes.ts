import { WireWriter } from './wire_writer.ts';
import { type Commit, writeCommit } from './write.ts';

/** Encodes commits as `writeCommit` does. Consecutive steps of one commit share the bytes. */
export class CommitBytes {
  readonly #out = new WireWriter(32);
  #bytes = Buffer.alloc(0);
  #last: Commit | undefined;

  of(commit: Commit): Buffer {
    if (commit !== this.#last) {
      writeCommit(this.#out, commit);
      this.#bytes = Buffer.from(this.#out.take());
      this.#last = commit;
    }
    return this.#bytes;
  }
}
