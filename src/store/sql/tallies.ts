import { sql } from 'kysely';
import { isTerminal, type Status } from '../../domain/lifecycle.ts';
import type { KindTally, OpenStageTally, RunTally } from '../../domain/progress.ts';
import { STAGE_KINDS, type StageKind } from '../../domain/run.ts';
import type { Db, Tx } from './engine.ts';
import { readReal } from './values.ts';

/** What rollouts add: nothing, as long as there are none. */
const NO_TURNS = Object.freeze({ count: 0n, turns: 0n });
const NO_DURATIONS = Object.freeze({ count: 0n, seconds: 0 });

/**
 * What progress is made of (M2), in two statements however many runs and stages there are: stages counted by kind and status, and the open ones
 * each. Every run asked for has an entry.
 */
export async function tallyRuns(
  db: Db | Tx,
  namespace: string,
  runs: readonly bigint[],
): Promise<Map<bigint, RunTally>> {
  const tallies = new Map(runs.map((run) => [run, emptyTally()]));
  if (runs.length === 0) return tallies;
  const [counts, open] = await Promise.all([countStages(db, namespace, runs), openStages(db, namespace, runs)]);
  for (const row of counts) {
    const tally = tallies.get(row.run);
    if (tally !== undefined) addCount(tally, row);
  }
  for (const row of open) tallies.get(row.run)?.openStages.push(readOpenStage(row));
  for (const { kinds, openStages } of tallies.values()) {
    kinds.sort((a, b) => placeOf(a.kind) - placeOf(b.kind));
    openStages.sort((a, b) => placeOf(a.kind) - placeOf(b.kind) || (a.number < b.number ? -1 : 1));
  }
  return tallies;
}

type Changing<T> = { -readonly [K in keyof T]: T[K] };

/** A tally while it is counted. */
interface Counting extends RunTally {
  readonly kinds: Changing<KindTally>[];
  readonly openStages: OpenStageTally[];
  substeps: RunTally['substeps'];
}

function emptyTally(): Counting {
  return { kinds: [], openStages: [], turns: NO_DURATIONS, substeps: NO_DURATIONS };
}

type CountRow = Awaited<ReturnType<typeof countStages>>[number];

function countStages(db: Db | Tx, namespace: string, runs: readonly bigint[]) {
  return db
    .selectFrom('stages')
    .select((eb) => [
      'run',
      'kind',
      'status',
      eb.fn.countAll<bigint>().as('count'),
      // As doubles: clients may count to the end of int64 in each stage, and whole numbers would overflow.
      sql<number>`sum(cast(completed_substeps as double precision))`.as('completed_substeps'),
      sql<number>`sum(cast(timed_substeps as double precision))`.as('timed_substeps'),
      sql<number>`sum(substep_seconds)`.as('substep_seconds'),
    ])
    .where('run', 'in', runs)
    .where('namespace', '=', namespace)
    .groupBy(['run', 'kind', 'status'])
    .execute();
}

function addCount(tally: Counting, row: CountRow): void {
  const kind = row.kind as StageKind;
  const status = row.status as Status;
  let counted = tally.kinds.find((each) => each.kind === kind);
  if (counted === undefined) {
    counted = emptyKind(kind);
    tally.kinds.push(counted);
  }
  counted[counterOf(status)] += row.count;
  if (isTerminal(status)) {
    const { turns, substeps } = counted.terminalStages;
    counted.terminalStages = { turns, substeps: substeps + BigInt(row.completed_substeps) };
  }
  tally.substeps = {
    count: tally.substeps.count + BigInt(row.timed_substeps),
    seconds: tally.substeps.seconds + readReal(row.substep_seconds),
  };
}

function emptyKind(kind: StageKind): Changing<KindTally> {
  return {
    kind,
    pending: 0n,
    open: 0n,
    completed: 0n,
    failed: 0n,
    cancelled: 0n,
    terminalStages: { turns: 0n, substeps: 0n },
    terminalRollouts: NO_TURNS,
  };
}

function counterOf(status: Status): 'pending' | 'open' | 'completed' | 'failed' | 'cancelled' {
  switch (status) {
    case 'PENDING':
      return 'pending';
    case 'COMPLETED':
      return 'completed';
    case 'FAILED':
      return 'failed';
    case 'CANCELLED':
      return 'cancelled';
    default:
      return 'open';
  }
}

type OpenRow = Awaited<ReturnType<typeof openStages>>[number];

function openStages(db: Db | Tx, namespace: string, runs: readonly bigint[]) {
  return db
    .selectFrom('stages')
    .select(['run', 'id', 'kind', 'number', 'status', 'phase', 'completed_substeps', 'total_substeps'])
    .where('run', 'in', runs)
    .where('namespace', '=', namespace)
    .where('status', 'not in', ['COMPLETED', 'FAILED', 'CANCELLED'])
    .execute();
}

function readOpenStage(row: OpenRow): OpenStageTally {
  return {
    id: row.id,
    kind: row.kind as StageKind,
    number: row.number,
    status: row.status as Status,
    phase: row.phase,
    completedSubsteps: row.completed_substeps,
    totalSubsteps: row.total_substeps ?? undefined,
    terminalRollouts: NO_TURNS,
    liveTurns: [],
  };
}

function placeOf(kind: StageKind): number {
  return STAGE_KINDS.indexOf(kind);
}
