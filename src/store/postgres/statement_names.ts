import { createHash } from 'node:crypto';

/** Bound on the statements that get a name. Later ones are sent without name. */
const MAX_NAMES = 500;

/**
 * Names of prepared statements. A name is a hash of the text, because processes behind a pooler share connections, and
 * a name must mean the same statement for all of them.
 */
export class StatementNames {
  readonly #names = new Map<string, string>();

  /** Returns undefined if the statement must be sent without name. */
  of(text: string): string | undefined {
    const known = this.#names.get(text);
    if (known !== undefined || this.#names.size >= MAX_NAMES) return known;
    // Postgres truncates names after 63 bytes.
    const name = `anabranch_${createHash('sha256').update(text).digest('hex').slice(0, 32)}`;
    this.#names.set(text, name);
    return name;
  }
}
