import { createHash } from 'node:crypto';

/** Distinct statements that get a name. Later ones are sent without. */
const MAX_NAMES = 500;

/**
 * Names of prepared statements. A name is a hash of the statement's text: behind a pooler, connections to Postgres are shared with other
 * processes, and a name must mean the same statement for all of them.
 */
export class StatementNames {
  private readonly names = new Map<string, string>();

  /** Undefined: send the statement without a name. */
  of(text: string): string | undefined {
    const known = this.names.get(text);
    if (known !== undefined || this.names.size >= MAX_NAMES) return known;
    // Postgres cuts names after 63 bytes.
    const name = `anabranch_${createHash('sha256').update(text).digest('hex').slice(0, 32)}`;
    this.names.set(text, name);
    return name;
  }
}
