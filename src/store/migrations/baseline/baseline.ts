import { createHash } from 'node:crypto';
import type { Migration } from '../migration.ts';
import { POSTGRES_TABLES } from './postgres.ts';
import { SQLITE_STATISTICS, SQLITE_TABLES } from './sqlite.ts';

const SQLITE = SQLITE_TABLES + SQLITE_STATISTICS;

/**
 * The schema of the first release. Until then it is changed in place: its name has a digest of the statements, so that
 * databases of other commits are refused.
 */
export const BASELINE: Migration = {
  name: `0001_baseline_${digestOf(SQLITE + POSTGRES_TABLES)}`,
  postgres: POSTGRES_TABLES,
  sqlite: SQLITE,
};

/** Comments and space do not count. */
function digestOf(statements: string): string {
  const text = statements.replaceAll(/--.*$/gm, '').replaceAll(/\s+/g, ' ');
  return createHash('sha256').update(text).digest('hex').slice(0, 8);
}
