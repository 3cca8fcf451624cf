import type { Transaction } from './transaction.ts';

/** Runs deletes within a tree one at a time (B2): waits for the others. */
export function lockTrees({ engine, db }: Transaction, trees: readonly bigint[]): Promise<void> {
  return engine.locks.names(
    db,
    trees.map((tree) => `trees/${tree}`),
  );
}

/**
 * Serialises successes in groups with CANCEL_PENDING and decisions to requeue rollouts of these groups, so that they
 * see each other. The rows of groups cannot be locked for this: transactions that hold a sibling lock them last, and a
 * success locks the siblings afterwards.
 */
export function lockPolicies({ engine, db }: Transaction, groups: readonly bigint[]): Promise<void> {
  return engine.locks.names(
    db,
    groups.map((group) => `policies/${group}`),
  );
}
