import { sql } from 'kysely';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import { type StepPruning, timeOfMark } from '../../../../domain/pruning.ts';
import type { Pin } from '../../../../domain/retention.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/statement_shapes.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { type NamespaceTransaction, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import { segmentsOver } from '../../log/read/read_stored.ts';
import { updateSegment } from '../../log/segments.ts';
import { Unreferencing } from '../../log/states/references.ts';
import { type PinRules, pinnedNow } from './pins.ts';
import { type PrunedRow, prunedRow } from './pruned_row.ts';

/**
 * S13: removes states of own steps of a trajectory. Each transaction rewrites one row of steps. As in a merge, the row
 * is prepared before, and replaced only if it is still the one that was read. Writers go on meanwhile. Steps that are
 * deleted meanwhile, and damaged rows, are left out. So are steps that the rules keep by now: they are returned.
 */
export async function pruneStates(
  engine: Engine,
  namespace: string,
  ref: TrajectoryRef,
  { steps, rules }: { readonly steps: readonly StepPruning[]; readonly rules: PinRules },
): Promise<ReadonlyMap<bigint, readonly Pin[]>> {
  const kept = new Map<bigint, readonly Pin[]>();
  const time = timeOfMark(parseInstant(await write(engine, (tx) => tx.readNow())));
  let left = [...steps].sort((a, b) => (a.stepNumber < b.stepNumber ? -1 : 1));
  while (left.length > 0) {
    const first = left[0]!.stepNumber;
    const row = (await segmentsOver({ engine, db: engine.db }, ref, first, first + 1n)
      .selectAll('s')
      .executeTakeFirst()) as SegmentRow | undefined;
    if (row === undefined) return kept;
    const these = left.filter(({ stepNumber }) => stepNumber < row.next_step_number);
    // The work before the transaction runs on the serving thread, so writers wait for it, too.
    const result = await engine.transactions.giveWayAfter(async () => {
      const pruned = await prunedRow(engine.compressor, row, these, time);
      return pruned && replace(engine, namespace, { ref, row, rules, time, pruned });
    });
    // Another transaction has changed the row.
    if (result === 'changed') continue;
    if (result instanceof Map) {
      for (const [step, pins] of result) kept.set(step, pins);
      left = left.filter(({ stepNumber }) => !kept.has(stepNumber));
      continue;
    }
    left = left.slice(these.length);
  }
  return kept;
}

interface Pruning {
  readonly ref: TrajectoryRef;
  readonly row: SegmentRow;
  readonly pruned: PrunedRow;
  readonly rules: PinRules;
  readonly time: Instant;
}

type Replaced = 'replaced' | 'changed' | ReadonlyMap<bigint, readonly Pin[]>;

/** Changes nothing if the row is not the one that was read, or if steps are pinned by now, which it returns. */
function replace(engine: Engine, namespace: string, { ref, row, pruned, rules, time }: Pruning): Promise<Replaced> {
  return writeIn(engine, namespace, async (tx): Promise<Replaced> => {
    if (!(await lockRow(tx, ref, row))) return 'changed';
    const numbers = pruned.steps.map(({ stepNumber }) => stepNumber);
    const pinned = numbers.length === 0 ? NONE : await pinnedNow(tx, ref, numbers, rules);
    if (pinned.size > 0) return pinned;
    const unreferencing = new Unreferencing(tx);
    await updateSegment(tx, ref, row, pruned.columns);
    for (const some of Map.groupBy(pruned.steps, ({ names }) => JSON.stringify(names)).values()) {
      const { names } = some[0]!;
      if (names.length === 0) continue;
      const numbers = some.map(({ stepNumber }) => stepNumber);
      unreferencing.add(await deleteReferences(tx, ref, numbers, names));
      await pruneAttached(tx, ref, numbers, names, time);
    }
    unreferencing.add(await deleteContentReferences(tx, ref, pruned.released));
    await unreferencing.write();
    return 'replaced';
  });
}

const NONE: ReadonlyMap<bigint, readonly Pin[]> = new Map();

/**
 * Locks the trajectory, for one short transaction, against all that locks it: deletion, branches and tags, which have
 * to be seen, and appends. A group of appends does not wait for it, but sets the trajectory aside.
 */
async function lockRow(tx: Transaction, { tree, key }: TrajectoryRef, row: SegmentRow): Promise<boolean> {
  const trajectory = tx.db
    .selectFrom('trajectories')
    .select('key')
    .where('tree', '=', tree)
    .where('key', '=', key)
    .where('purging', '=', 0);
  if ((await tx.engine.locks.rows(trajectory, 'delete').executeTakeFirst()) === undefined) return false;
  const segment = tx.db
    .selectFrom('segments')
    .select(['next_step_number', 'checksum', 'state_names', 'encoding', 'body_bytes'])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('first_step_number', '=', row.first_step_number);
  const found = await tx.engine.locks.rows(segment, 'write').executeTakeFirst();
  return (
    found?.next_step_number === row.next_step_number &&
    found.checksum === row.checksum &&
    found.encoding === row.encoding &&
    found.body_bytes === row.body_bytes &&
    // Attaching a state changes only the names.
    found.state_names === row.state_names
  );
}

/** Deletes references by states of these names. */
function deleteReferences(tx: Transaction, ref: TrajectoryRef, numbers: readonly bigint[], names: readonly string[]) {
  return tx.db
    .deleteFrom('state_refs')
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where(tx.engine.among(sql.ref('step_number'), numbers))
    .where('name', 'in', padded(names))
    .returning(['namespace', 'state'])
    .execute();
}

async function pruneAttached(
  tx: Transaction,
  ref: TrajectoryRef,
  numbers: readonly bigint[],
  names: readonly string[],
  time: Instant,
): Promise<void> {
  await tx.db
    .updateTable('attached_states')
    .set({ data: null, pruned_time: formatInstant(time, 6) })
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where(tx.engine.among(sql.ref('step_number'), numbers))
    .where('name', 'in', padded(names))
    .where('pruned_time', 'is', null)
    .execute();
}

/** Deletes references by contents, which have no name. */
async function deleteContentReferences(
  tx: NamespaceTransaction,
  ref: TrajectoryRef,
  released: PrunedRow['released'],
): Promise<readonly { readonly namespace: string; readonly state: bigint }[]> {
  const deleted: { readonly namespace: string; readonly state: bigint }[] = [];
  const digests = [...new Set(released.flatMap((each) => each.digests))];
  for (let at = 0; at < digests.length; at += DIGESTS) {
    const states = await tx.db
      .selectFrom('states')
      .select(['key', 'digest'])
      .where('namespace', '=', tx.namespace)
      .where('digest', 'in', padded(digests.slice(at, at + DIGESTS)).map(bindDigest))
      .execute();
    for (const { key, digest } of states) {
      const named = readDigest(digest);
      const numbers = released.filter((each) => each.digests.includes(named)).map(({ stepNumber }) => stepNumber);
      deleted.push(
        ...(await tx.db
          .deleteFrom('state_refs')
          .where('tree', '=', ref.tree)
          .where('trajectory', '=', ref.key)
          .where(tx.engine.among(sql.ref('step_number'), numbers))
          .where('name', '=', '')
          .where('state', '=', key)
          .returning(['namespace', 'state'])
          .execute()),
      );
    }
  }
  return deleted;
}

/** Digests of one statement. */
const DIGESTS = 500;
