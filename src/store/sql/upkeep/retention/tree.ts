import { sql } from 'kysely';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import type { RetentionScope, StepPins } from '../../../../domain/retention.ts';
import { findRunKeys } from '../../kit/by_id.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet, readLabels } from '../../kit/values.ts';
import { experimentKey } from '../../records/experiment/experiments.ts';
import { IS_LIVE } from '../../records/rollout/rows.ts';
import { KeySet } from '../usage/key_set.ts';

/** Row keys of the scope of a policy. */
export interface ScopeKeys {
  readonly run?: bigint;
  readonly experiment?: bigint;
}

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function scopeKeys(scope: ReadScope, { runId, experimentId }: RetentionScope): Promise<ScopeKeys> {
  if (runId !== undefined) return { run: (await findRunKeys(scope, runId)).key };
  if (experimentId !== undefined) return { experiment: await experimentKey(scope, { id: experimentId }) };
  return {};
}

/** Trajectories that one statement looks at to find trees. */
const PAGE = 500;

/** Returns the trees that have trajectories of the scope, each once, in order of their first one. */
export async function* treesOf(
  { db, namespace }: ReadScope,
  { run, experiment }: ScopeKeys,
): AsyncGenerator<bigint, void, undefined> {
  const seen = new KeySet();
  for (let after = 0n; ; ) {
    let query = db
      .selectFrom('trajectories')
      .select(['tree', 'key'])
      .where('namespace', '=', namespace)
      .where('key', '>', after);
    if (run !== undefined) query = query.where('run', '=', run);
    if (experiment !== undefined) query = query.where('experiment', '=', experiment);
    const rows = await query.orderBy('key').limit(PAGE).execute();
    for (const { tree } of rows) if (seen.add(tree)) yield tree;
    if (rows.length < PAGE) return;
    after = rows.at(-1)!.key;
  }
}

export interface TreeRow {
  readonly key: bigint;
  readonly id: string;
  readonly parent: bigint | undefined;
  readonly branchPoint: bigint | undefined;
  readonly nextStepNumber: bigint;
  readonly hidden: boolean;
  readonly status: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly updateTime: Instant;
  readonly isInScope: boolean;
}

/** The trajectories of a tree with everything that refers to their steps. */
export interface RetainedTree {
  readonly tree: bigint;
  readonly rows: readonly TreeRow[];
  readonly pinsOf: (row: TreeRow) => StepPins;
}

export function ownBeginOf({ branchPoint }: Pick<TreeRow, 'branchPoint'>): bigint {
  return branchPoint === undefined ? 0n : branchPoint + 1n;
}

/** A trajectory that is being purged has gone, with its tags and branches. Memory grows with the tree and its tags. */
export async function readTree(scope: ReadScope, tree: bigint, keys: ScopeKeys): Promise<RetainedTree> {
  const { db, namespace } = scope;
  const found = await db
    .selectFrom('trajectories')
    .select(['key', 'id', 'parent', 'branch_point', 'next_step_number', 'hidden'])
    .select(['status', 'labels', 'update_time', 'run', 'experiment'])
    .where('tree', '=', tree)
    .where('namespace', '=', namespace)
    .where('purging', '=', 0)
    .orderBy('key')
    .execute();
  const rows = found.map((row): TreeRow => {
    const inRun = keys.run === undefined || row.run === keys.run;
    return {
      key: row.key,
      id: row.id,
      parent: row.parent ?? undefined,
      branchPoint: row.branch_point ?? undefined,
      nextStepNumber: row.next_step_number,
      hidden: isSet(row.hidden),
      status: row.status,
      labels: readLabels(row.labels),
      updateTime: parseInstant(row.update_time),
      isInScope: inRun && (keys.experiment === undefined || row.experiment === keys.experiment),
    };
  });
  const byKey = new Map(rows.map((row) => [row.key, row]));
  const tagged = new Map<bigint, Set<bigint>>();
  const branchPoints = new Map<bigint, Set<bigint>>();
  const note = (to: Map<bigint, Set<bigint>>, key: bigint, step: bigint) => {
    to.set(key, (to.get(key) ?? new Set<bigint>()).add(step));
  };
  for (const { parent, branchPoint } of rows) {
    if (parent !== undefined && branchPoint !== undefined) note(branchPoints, parent, branchPoint);
  }
  const tags = await db
    .selectFrom('tags')
    .select(['trajectory', 'step_number'])
    .where('tree', '=', tree)
    .where('namespace', '=', namespace)
    .execute();
  for (const { trajectory, step_number: step } of tags) {
    // B5: a tag may name an inherited step, which an ancestor owns.
    let owner = byKey.get(trajectory);
    while (owner !== undefined && step < ownBeginOf(owner)) {
      owner = owner.parent === undefined ? undefined : byKey.get(owner.parent);
    }
    if (owner !== undefined) note(tagged, owner.key, step);
  }
  const live = await liveTrajectories(
    scope,
    found.flatMap(({ run }) => run ?? []),
  );
  const none: ReadonlySet<bigint> = new Set();
  return {
    tree,
    rows,
    pinsOf: ({ key }) => ({
      tagged: tagged.get(key) ?? none,
      branchPoints: branchPoints.get(key) ?? none,
      isLive: live.has(key),
    }),
  };
}

/** Returns the trajectories of the current attempts of live rollouts. */
async function liveTrajectories({ engine, db, namespace }: ReadScope, runs: readonly bigint[]) {
  const live = new Set<bigint>();
  const distinct = [...new Set(runs)];
  if (distinct.length === 0) return live;
  const rows = await db
    .selectFrom('rollouts as r')
    .select('r.trajectory')
    .where(engine.sql.among(sql.ref('r.run'), distinct))
    .where('r.namespace', '=', namespace)
    .where(IS_LIVE)
    .execute();
  for (const { trajectory } of rows) if (trajectory !== null) live.add(trajectory);
  return live;
}
