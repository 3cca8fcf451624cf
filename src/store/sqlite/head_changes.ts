import type { Connection } from './connection.ts';

/** SQL function that the triggers call. */
const CHANGED = 'anabranch_head_changed';

/**
 * Columns that a decision to append depends on. Appends alone move the end of a trajectory that is not hidden, and they
 * cache its head themselves.
 */
const DECISIVE = ['hidden', 'status', 'writer_epoch'];

const TRIGGERS = [
  `create temp trigger head_changed after update of ${DECISIVE.join(', ')} on trajectories
  when ${DECISIVE.map((column) => `old.${column} <> new.${column}`).join(' or ')}
  begin select ${CHANGED}(old.key); end`,
  `create temp trigger head_deleted after delete on trajectories begin select ${CHANGED}(old.key); end`,
];

/**
 * Finds out which trajectories a transaction changes in a way that appends must know. The database itself reports them,
 * so no transaction can leave one out. The triggers are part of the connection, not of the file.
 */
export class HeadChanges {
  readonly #writer: Connection;
  readonly #changed = new Set<bigint>();
  #version: unknown;

  /** The schema must be complete. */
  constructor(writer: Connection) {
    this.#writer = writer;
    writer.define(CHANGED, (key) => {
      this.#changed.add(key);
      return null;
    });
    for (const trigger of TRIGGERS) writer.prepare(trigger).run([]);
  }

  /** Must be called at the begin of each transaction. Returns whether another program has written to the file since. */
  begin(): boolean {
    this.#changed.clear();
    const [{ data_version: version }] = this.#writer.prepare('pragma data_version').all([]) as [Version];
    const isSame = this.#version === undefined || this.#version === version;
    this.#version = version;
    return !isSame;
  }

  /** Row keys of the trajectories that the current transaction has changed. */
  get keys(): Iterable<bigint> {
    return this.#changed;
  }
}

interface Version {
  readonly data_version: bigint;
}
