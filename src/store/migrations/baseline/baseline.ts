import { createHash } from 'node:crypto';
import type { Migration } from '../migration.ts';
import { POSTGRES_TABLES } from './postgres.ts';
import { SQLITE_STATISTICS, SQLITE_TABLES } from './sqlite.ts';
import { POSTGRES_TRIGGERS, SQLITE_TRIGGERS } from './triggers.ts';

const POSTGRES = POSTGRES_TABLES + POSTGRES_TRIGGERS;
const SQLITE = SQLITE_TABLES + SQLITE_TRIGGERS + SQLITE_STATISTICS;

/**
 * The schema of the first release. Until then it is changed in place: its name has a digest of the statements, so that
 * databases of other commits are refused.
 */
export const BASELINE: Migration = {
  name: `0001_baseline_${digestOf(SQLITE + POSTGRES)}`,
  postgres: POSTGRES,
  sqlite: SQLITE,
};

/** Comments and space do not count. */
function digestOf(statements: string): string {
  const text = statements.replaceAll(/--.*$/gm, '').replaceAll(/\s+/g, ' ');
  return createHash('sha256').update(text).digest('hex').slice(0, 8);
}
