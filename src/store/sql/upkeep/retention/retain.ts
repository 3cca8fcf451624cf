import { AnabranchError } from '../../../../domain/errors.ts';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import {
  addSizes,
  decideTree,
  type MemberDecision,
  NOTHING,
  type Pin,
  type RemovedSize,
  type Retention,
  type RetentionPart,
  type RetentionPolicy,
  type SelectedStep,
  type StatePolicy,
  StateSelection,
  type TrajectoryPolicy,
} from '../../../../domain/retention.ts';
import type { RetentionStore } from '../../../contract/retention.ts';
import type { Engine } from '../../kit/engine.ts';
import { type ReadScope, scopeOf, write } from '../../kit/transaction.ts';
import { listTrajectories } from '../../log/trajectory/list.ts';
import { deleteTrajectory } from '../trajectory/deletion.ts';
import { readFacts, type SizedFacts, type StateFacts } from './facts.ts';
import { hasTags, pruneStates } from './prune.ts';
import { RemovedStates } from './sizes.ts';
import { ownBeginOf, type RetainedTree, readTree, type ScopeKeys, scopeKeys, type TreeRow, treesOf } from './tree.ts';

interface Retaining {
  readonly policy: RetentionPolicy;
  readonly asOf: Instant;
  /** Whether what is selected is also removed, part by part. */
  readonly apply: boolean;
  /** Counts the states that are removed. */
  readonly removed: RemovedStates;
}

export async function beginRetention(
  engine: Engine,
  namespace: string,
  policy: RetentionPolicy,
  { asOf, apply }: Parameters<RetentionStore['retain']>[2],
): Promise<Retention> {
  const time = asOf ?? parseInstant(await write(engine, (tx) => tx.readNow()));
  const removed = new RemovedStates(scopeOf(engine, namespace));
  return { asOf: time, parts: retain(engine, namespace, { policy, asOf: time, apply, removed }) };
}

/** S14: goes through the trees of a scope, one at a time. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function* retain(
  engine: Engine,
  namespace: string,
  retaining: Retaining,
): AsyncGenerator<RetentionPart, void, undefined> {
  const scope = scopeOf(engine, namespace);
  const { policy } = retaining;
  const keys = await scopeKeys(scope, policy);
  const newest = 'trajectories' in policy ? await newestOf(scope, retaining, policy.trajectories) : new Set<bigint>();
  for await (const tree of treesOf(scope, keys)) {
    const found = await readTree(scope, tree, keys);
    if ('states' in policy) yield* pruneTree(scope, found, retaining, policy.states);
    else yield* deleteFromTree(scope, found, retaining, { policy: policy.trajectories, newest, keys });
  }
}

async function* pruneTree(
  scope: ReadScope,
  tree: RetainedTree,
  { asOf, apply, removed }: Retaining,
  policy: StatePolicy,
): AsyncGenerator<RetentionPart, void, undefined> {
  for (const row of tree.rows) {
    if (!row.isInScope) continue;
    const ref = { tree: tree.tree, key: row.key };
    const selection = new StateSelection<SizedFacts>(policy, asOf, tree.pinsOf(row));
    for await (const facts of readFacts(scope, ref, [ownBeginOf(row), row.nextStepNumber], { all: false })) {
      const selected = facts.flatMap((each) => selection.add(each) ?? []);
      if (selected.length === 0) continue;
      const going = selected.filter(({ pins }) => pins.length === 0);
      const stored = await removed.read(going.flatMap(goingStates));
      let now: readonly SelectedStep<SizedFacts>[] = selected;
      if (apply) {
        const steps = going.map(({ pruning }) => pruning);
        const kept = await pruneStates(scope.engine, scope.namespace, ref, { steps, rules: policy });
        now = selected.map((each) => ({ ...each, pins: kept.get(each.facts.stepNumber) ?? each.pins }));
      }
      const gone = now.filter(({ pins }) => pins.length === 0);
      yield {
        trajectoryId: row.id,
        pruned: gone.map(({ pruning }) => pruning),
        pinned: now
          .filter(({ pins }) => pins.length > 0)
          .map(({ facts: { stepNumber }, pins }) => ({ stepNumber, pins })),
        size: removed.add(gone.flatMap(goingStates), stored),
      };
    }
  }
}

function goingStates({ facts, pruning }: SelectedStep<SizedFacts>): StateFacts[] {
  return facts.states.filter(({ name, mediaType }) =>
    name === '' ? pruning.mediaTypes.includes(mediaType) : pruning.names.includes(name),
  );
}

interface TrajectoryRule {
  readonly policy: TrajectoryPolicy;
  readonly newest: ReadonlySet<bigint>;
  readonly keys: ScopeKeys;
}

/** Returns the newest trajectories that match, which stay. */
async function newestOf(
  scope: ReadScope,
  { policy, asOf }: Retaining,
  { statuses, labels, keepLast }: TrajectoryPolicy,
): Promise<ReadonlySet<bigint>> {
  if (keepLast === 0) return new Set();
  const { runId, experimentId } = policy;
  const filter = {
    statuses,
    labels,
    createTimeTo: asOf + 1n,
    ...(runId === undefined ? {} : { runId }),
    ...(experimentId === undefined ? {} : { experimentId }),
  };
  const found = await listTrajectories(scope, filter, { limit: keepLast, after: undefined });
  return new Set(found.map(({ ref }) => ref.key));
}

async function* deleteFromTree(
  scope: ReadScope,
  tree: RetainedTree,
  { asOf, apply, removed }: Retaining,
  { policy, newest }: TrajectoryRule,
): AsyncGenerator<RetentionPart, void, undefined> {
  const isSelected = (row: TreeRow) =>
    row.isInScope &&
    !row.hidden &&
    !newest.has(row.key) &&
    (policy.statuses as readonly string[]).includes(row.status) &&
    row.updateTime <= asOf - policy.olderThan &&
    [...policy.labels].every(([key, value]) => row.labels.get(key) === value);
  const members = tree.rows.map((row) => {
    const { tagged, isLive } = tree.pinsOf(row);
    return { ...row, isSelected: isSelected(row), isTagged: tagged.size > 0, isLive };
  });
  const rows = new Map(tree.rows.map((row) => [row.key, row]));
  /** Branches that go with the next selected trajectory, if it goes. */
  const below: RetentionPart[] = [];
  for (const decision of decideTree(members, policy)) {
    const row = rows.get(decision.key)!;
    const part = await partOf(scope, tree, row, { decision, removed });
    if (part === undefined) continue;
    // Those that go with another one are deleted by its deletion.
    if (!decision.isSelected && policy.onBranches === 'CASCADE') {
      below.push(part);
      continue;
    }
    const isRemoved = apply && decision.isSelected && decision.keptSteps !== undefined;
    const late = isRemoved ? await remove(scope, row, policy) : undefined;
    const going = below.splice(0);
    if (late === undefined) yield* [...going, part];
    else if (late.pins.length > 0) yield { trajectoryId: row.id, pruned: [], pinned: [late], size: NOTHING };
  }
  yield* below;
}

async function partOf(
  scope: ReadScope,
  { tree }: RetainedTree,
  row: TreeRow,
  {
    decision: { keptSteps, pins, isSelected },
    removed,
  }: { readonly decision: MemberDecision; readonly removed: RemovedStates },
): Promise<RetentionPart | undefined> {
  const { id: trajectoryId, nextStepNumber, hidden } = row;
  if (keptSteps === undefined) return { trajectoryId, pruned: [], pinned: [{ pins }], size: NOTHING };
  const begin = ownBeginOf(row);
  const deletedFrom = keptSteps === 'none' || keptSteps.upTo < begin ? begin : keptSteps.upTo;
  // A hidden trajectory that loses nothing more.
  if (hidden && keptSteps !== 'none' && deletedFrom >= nextStepNumber) return undefined;
  let size: RemovedSize = { ...NOTHING, trajectories: hidden && !isSelected ? 0n : 1n };
  const ref = { tree, key: row.key };
  for await (const facts of readFacts(scope, ref, [deletedFrom, nextStepNumber], { all: true })) {
    const going = facts.flatMap((each) => each.states);
    const states = removed.add(going, await removed.read(going));
    const bytes = facts.reduce((sum, each) => sum + each.bytes, 0);
    const stored = facts.reduce((sum, each) => sum + each.storedBytes, 0);
    const steps = { ...NOTHING, logicalBytes: BigInt(bytes), storedBytes: BigInt(Math.round(stored)) };
    size = addSizes(addSizes(size, states), { ...steps, steps: BigInt(facts.length) });
  }
  return { trajectoryId, deletedFrom, pruned: [], pinned: [], size };
}

/** Thrown in the transaction that would delete a trajectory. Without pins, the trajectory was changed. */
class KeptByNow extends Error {
  override readonly name = 'KeptByNow';
  readonly pins: readonly Pin[];

  constructor(pins: readonly Pin[]) {
    super('the trajectory was changed or tagged after it was selected');
    this.pins = pins;
  }
}

/**
 * Another caller may have deleted the trajectory, or created a branch of it. One that was changed or tagged since is
 * kept: the error with the pins is returned.
 */
async function remove(
  { engine, namespace }: ReadScope,
  row: TreeRow,
  { onBranches, keepTagged }: TrajectoryPolicy,
): Promise<KeptByNow | undefined> {
  try {
    await deleteTrajectory(engine, namespace, row.id, onBranches, async (tx, ref) => {
      const { update_time: updated } = await tx.db
        .selectFrom('trajectories')
        .select('update_time')
        .where('tree', '=', ref.tree)
        .where('key', '=', ref.key)
        .executeTakeFirstOrThrow();
      if (parseInstant(updated) !== row.updateTime) throw new KeptByNow([]);
      const going = { from: ownBeginOf(row), below: onBranches === 'CASCADE' };
      if (keepTagged && (await hasTags(tx, ref, going))) throw new KeptByNow(['TAG']);
    });
  } catch (error) {
    if (error instanceof KeptByNow) return error;
    const reason = error instanceof AnabranchError ? error.reason : undefined;
    if (reason !== 'TRAJECTORY_NOT_FOUND' && reason !== 'HAS_BRANCHES') throw error;
  }
  return undefined;
}
