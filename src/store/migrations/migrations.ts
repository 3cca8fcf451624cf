import { BASELINE } from './baseline/baseline.ts';
import type { Migration } from './migration.ts';

/** Every migration, in the order of its number. */
export const MIGRATIONS: readonly Migration[] = [BASELINE];
