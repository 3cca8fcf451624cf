import { type Compilable, type InferResult, sql } from 'kysely';
import { type Status, TERMINAL_STATUSES } from '../../../../domain/lifecycle.ts';
import type { KindTally, OpenStageTally, RunTally, StageWorkTally } from '../../../../domain/progress.ts';
import { STAGE_KINDS, type StageKind } from '../../../../domain/run.ts';
import type { Db } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import { inOneRoundTrip, type ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import { turnsOf } from '../rollout/rows.ts';

const NO_ROLLOUTS = Object.freeze({ count: 0n, tried: 0n, turns: 0n });
const NO_WORK = Object.freeze({ rollouts: 0n, turns: 0n, substeps: 0n });
const NO_DURATIONS = Object.freeze({ count: 0n, seconds: 0 });

/**
 * Counts what progress is computed from (M2), in four statements for any number of runs. Reads terminal stages by kind
 * and status, each open stage, the counters of groups, and live rollouts. Every requested run has an entry.
 */
export async function tallyRuns(scope: ReadScope, runs: readonly bigint[]): Promise<Map<bigint, RunTally>> {
  const tallies = new Map(runs.map((run) => [run, new Counting()]));
  if (runs.length === 0) return tallies;
  const keys = padded(runs);
  const ask = async <Row>(
    name: string,
    build: (db: Db, namespace: string, runs: readonly bigint[]) => Compilable<Row>,
  ) => {
    const query = scope.engine.kept.of(name, [scope.namespace, keys], (of, among) => build(scope.db, of, among));
    return (await scope.db.executeQuery(query)).rows;
  };
  const [counts, open, groups, live] = await inOneRoundTrip([
    ask('tally terminal stages', countTerminalStages),
    ask('tally open stages', openStages),
    ask('tally rollouts', countRollouts),
    ask('tally live rollouts', liveRollouts),
  ]);
  for (const row of counts) tallies.get(row.run)?.addTerminalStages(row);
  for (const row of open) tallies.get(row.run)?.addOpenStage(row);
  for (const row of groups) tallies.get(row.run)?.addRollouts(row);
  for (const row of live) tallies.get(row.run)?.addLiveRollout(row);
  for (const tally of tallies.values()) tally.sort();
  return tallies;
}

type Changing<T> = { -readonly [K in keyof T]: T[K] };
type OpenStage = Changing<Omit<OpenStageTally, 'liveTurns'>> & { readonly liveTurns: bigint[] };

/** A tally while rows are added to it. */
class Counting implements RunTally {
  readonly kinds: Changing<KindTally>[] = [];
  readonly openStages: OpenStage[] = [];
  turns: RunTally['turns'] = NO_DURATIONS;
  substeps: RunTally['substeps'] = NO_DURATIONS;
  readonly #openByKey = new Map<bigint, OpenStage>();

  addTerminalStages(row: CountRow): void {
    const counted = this.#kindOf(row.kind as StageKind);
    counted[COUNTERS[row.status as Status]] += row.count;
    addWork(counted, row.status, { ...NO_WORK, substeps: BigInt(row.completed_substeps) });
    const { abandonedStages } = counted;
    counted.abandonedStages = {
      ...abandonedStages,
      expectedTurns: abandonedStages.expectedTurns + readReal(row.expected_turns),
      expectedSubsteps: abandonedStages.expectedSubsteps + readReal(row.expected_substeps),
      shares: abandonedStages.shares + readReal(row.shares),
      weightedShares: abandonedStages.weightedShares + readReal(row.weighted_shares),
    };
    this.substeps = sum(this.substeps, BigInt(row.timed_substeps), row.substep_seconds);
  }

  addOpenStage(row: OpenRow): void {
    const stage = readOpenStage(row);
    this.#kindOf(stage.kind)[COUNTERS[stage.status]] += 1n;
    this.substeps = sum(this.substeps, row.timed_substeps, row.substep_seconds);
    this.openStages.push(stage);
    this.#openByKey.set(row.key, stage);
  }

  addRollouts(row: GroupRow): void {
    const counted = this.#kindOf(row.kind as StageKind);
    const terminal = { count: row.terminal_rollouts, tried: row.tried_rollouts, turns: row.terminal_turns };
    counted.rollouts += row.rollouts;
    counted.terminalRollouts = {
      count: counted.terminalRollouts.count + terminal.count,
      tried: counted.terminalRollouts.tried + terminal.tried,
      turns: counted.terminalRollouts.turns + terminal.turns,
    };
    this.turns = sum(this.turns, row.timed_turns, row.turn_seconds);
    const stage = row.open_stage === null ? undefined : this.#openByKey.get(row.open_stage);
    if (stage === undefined) {
      addWork(counted, row.status, { ...NO_WORK, rollouts: row.rollouts, turns: terminal.turns });
      return;
    }
    stage.rollouts = row.rollouts;
    stage.terminalRollouts = terminal;
  }

  addLiveRollout({ stage, kind, status, branch_point, next_step_number }: LiveRow): void {
    const turns = next_step_number === null ? 0n : turnsOf(branch_point, next_step_number);
    const open = this.#openByKey.get(stage);
    if (open !== undefined) {
      open.liveTurns.push(turns);
      return;
    }
    addWork(this.#kindOf(kind as StageKind), status, { ...NO_WORK, turns });
  }

  sort(): void {
    this.kinds.sort((a, b) => kindOrder(a.kind) - kindOrder(b.kind));
    this.openStages.sort((a, b) => kindOrder(a.kind) - kindOrder(b.kind) || (a.number < b.number ? -1 : 1));
  }

  #kindOf(kind: StageKind): Changing<KindTally> {
    const there = this.kinds.find((each) => each.kind === kind);
    if (there !== undefined) return there;
    const made = emptyKind(kind);
    this.kinds.push(made);
    return made;
  }
}

/** Adds the work of terminal stages with this status. */
function addWork(counted: Changing<KindTally>, status: string, done: StageWorkTally): void {
  const add = (before: StageWorkTally): StageWorkTally => ({
    rollouts: before.rollouts + done.rollouts,
    turns: before.turns + done.turns,
    substeps: before.substeps + done.substeps,
  });
  if (status === 'COMPLETED') counted.completedStages = add(counted.completedStages);
  else counted.abandonedStages = { ...counted.abandonedStages, ...add(counted.abandonedStages) };
}

function sum(before: RunTally['turns'], count: bigint, seconds: number | string): RunTally['turns'] {
  return { count: before.count + count, seconds: before.seconds + readReal(seconds) };
}

type CountRow = InferResult<ReturnType<typeof countTerminalStages>>[number];

function countTerminalStages(db: Db, namespace: string, runs: readonly bigint[]) {
  return db
    .selectFrom('stages')
    .select((eb) => [
      'run',
      'kind',
      'status',
      eb.fn.countAll<bigint>().as('count'),
      // Doubles, because counts of clients go up to the maximum of int64, and integer sums would overflow.
      sql<number>`sum(cast(completed_substeps as double precision))`.as('completed_substeps'),
      sql<number>`sum(cast(timed_substeps as double precision))`.as('timed_substeps'),
      sql<number>`sum(substep_seconds)`.as('substep_seconds'),
      sql<number>`coalesce(sum(end_expected_turns), 0.0)`.as('expected_turns'),
      sql<number>`coalesce(sum(end_expected_substeps), 0.0)`.as('expected_substeps'),
      sql<number>`coalesce(sum(end_share), 0.0)`.as('shares'),
      sql<number>`coalesce(sum(end_share * end_expected_turns), 0.0)`.as('weighted_shares'),
    ])
    .where('run', 'in', runs)
    .where('namespace', '=', namespace)
    .where('status', 'in', TERMINAL_STATUSES)
    .groupBy(['run', 'kind', 'status']);
}

function emptyKind(kind: StageKind): Changing<KindTally> {
  return {
    kind,
    pending: 0n,
    open: 0n,
    completed: 0n,
    failed: 0n,
    cancelled: 0n,
    completedStages: NO_WORK,
    abandonedStages: { ...NO_WORK, expectedTurns: 0, expectedSubsteps: 0, shares: 0, weightedShares: 0 },
    rollouts: 0n,
    terminalRollouts: NO_ROLLOUTS,
  };
}

const COUNTERS = {
  PENDING: 'pending',
  INITIALIZING: 'open',
  RUNNING: 'open',
  PAUSED: 'open',
  COMPLETED: 'completed',
  FAILED: 'failed',
  CANCELLED: 'cancelled',
} as const satisfies Record<Status, keyof KindTally>;

type OpenRow = InferResult<ReturnType<typeof openStages>>[number];

/** Matches the condition of the index of open stages literally. */
function openStages(db: Db, namespace: string, runs: readonly bigint[]) {
  return db
    .selectFrom('stages')
    .select(['run', 'key', 'id', 'kind', 'number', 'status', 'phase', 'completed_substeps', 'total_substeps'])
    .select(['timed_substeps', 'substep_seconds'])
    .where('run', 'in', runs)
    .where('namespace', '=', namespace)
    .where(sql<boolean>`status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED')`);
}

function readOpenStage(row: OpenRow): OpenStage {
  return {
    id: row.id,
    kind: row.kind as StageKind,
    number: row.number,
    status: row.status as Status,
    phase: row.phase,
    completedSubsteps: row.completed_substeps,
    totalSubsteps: row.total_substeps ?? undefined,
    rollouts: 0n,
    terminalRollouts: NO_ROLLOUTS,
    liveTurns: [],
  };
}

type GroupRow = InferResult<ReturnType<typeof countRollouts>>[number];

/**
 * Returns one row for each open stage, and one for all terminal stages of a kind and status. Groups are summed before
 * the joins, because there are many groups and few stages.
 */
function countRollouts(db: Db, namespace: string, runs: readonly bigint[]) {
  const openStage = sql<bigint | null>`case when s.status not in ('COMPLETED', 'FAILED', 'CANCELLED') then s.key end`;
  // Postgres returns numeric for sums of integers.
  const total = (column: string) => sql<bigint>`cast(sum(${sql.ref(column)}) as bigint)`;
  // Starts from the stages: an index holds the groups of a stage together, in the order of the aggregation.
  const stages = db
    .selectFrom('stages as p')
    .innerJoin('groups as g', 'g.stage', 'p.key')
    .select((eb) => [
      'p.key as stage',
      eb.fn.sum('g.rollouts').as('rollouts'),
      eb.fn.sum('g.terminal_rollouts').as('terminal_rollouts'),
      eb.fn.sum('g.tried_rollouts').as('tried_rollouts'),
      eb.fn.sum('g.terminal_turns').as('terminal_turns'),
      eb.fn.sum('g.timed_turns').as('timed_turns'),
      eb.fn.sum('g.turn_seconds').as('turn_seconds'),
    ])
    .where('p.run', 'in', runs)
    .where('p.namespace', '=', namespace)
    .groupBy('p.key');
  return db
    .selectFrom(stages.as('g'))
    .innerJoin('stages as s', 's.key', 'g.stage')
    .select(['s.run', 's.kind', 's.status', openStage.as('open_stage')])
    .select([
      total('g.rollouts').as('rollouts'),
      total('g.terminal_rollouts').as('terminal_rollouts'),
      total('g.tried_rollouts').as('tried_rollouts'),
      total('g.terminal_turns').as('terminal_turns'),
      total('g.timed_turns').as('timed_turns'),
      sql<number>`sum(g.turn_seconds)`.as('turn_seconds'),
    ])
    .groupBy(['s.run', 's.kind', 's.status', openStage]);
}

type LiveRow = InferResult<ReturnType<typeof liveRollouts>>[number];

/**
 * Selects live rollouts with the trajectories of their attempts. Matches the condition of the index of live rollouts
 * literally.
 */
function liveRollouts(db: Db, namespace: string, runs: readonly bigint[]) {
  return db
    .selectFrom('rollouts as o')
    .innerJoin('stages as s', 's.key', 'o.stage')
    .leftJoin('trajectories as t', (join) =>
      join.onRef('t.tree', '=', 'o.tree').onRef('t.key', '=', 'o.trajectory').on('t.hidden', '=', 0),
    )
    .select(['o.run', 'o.stage', 's.kind', 's.status', 't.branch_point', 't.next_step_number'])
    .where('o.run', 'in', runs)
    .where('o.namespace', '=', namespace)
    .where(sql<boolean>`o.status in ('INITIALIZING', 'RUNNING')`);
}

function kindOrder(kind: StageKind): number {
  return STAGE_KINDS.indexOf(kind);
}
