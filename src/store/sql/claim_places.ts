import { sql } from 'kysely';
import type { Plan, StageKind } from '../../domain/run.ts';
import type { Assigned } from './claim_tasks.ts';
import type { Db, Engine, QueuedRow, Tx } from './engine.ts';
import { type RolloutRow, selectRollouts } from './rollout_rows.ts';
import { readPlan } from './run_values.ts';
import type { HeldPoint } from './start_points.ts';
import { padded } from './statement_shapes.ts';

/** Where a rollout that is claimed stands, as its claim tells it. */
export interface ClaimPlace {
  readonly group: { readonly key: bigint; readonly id: string };
  readonly stage: { readonly key: bigint; readonly id: string; readonly kind: StageKind };
  readonly run: { readonly key: bigint; readonly id: string; readonly plan: Plan | undefined };
  readonly experiment: { readonly key: bigint; readonly id: string };
}

/** A rollout that was locked and can be begun. */
export interface Taken {
  readonly row: QueuedRow;
  readonly place: ClaimPlace;
  /** Undefined: it begins from nothing. */
  readonly point: HeldPoint | undefined;
  /** Row key of its attempt's trajectory. */
  readonly trajectory: bigint;
  readonly assigned: Assigned;
  /** As it was, with its override; undefined: it has none. */
  readonly before: RolloutRow | undefined;
}

/**
 * Places of rollouts that are locked, by rollout; without those whose run or stage is, now that they are locked, paused, terminal or gone: a deletion hides
 * the run before it looks for the run's rollouts.
 */
export async function readPlaces(engine: Engine, tx: Tx, rows: readonly QueuedRow[]): Promise<Map<bigint, ClaimPlace>> {
  const groups = padded([...new Set(rows.map(({ group_key }) => group_key))]);
  const query = engine.kept.of('places of groups', [groups], (among) => selectPlaces(engine.db, among));
  const { rows: found } = await tx.executeQuery(query);
  const byGroup = new Map(
    found.map((row): [bigint, ClaimPlace] => [
      row.group_key,
      {
        group: { key: row.group_key, id: row.group_id },
        stage: { key: row.stage_key, id: row.stage_id, kind: row.kind as StageKind },
        run: { key: row.run_key, id: row.run_id, plan: readPlan(row.plan) },
        experiment: { key: row.experiment_key, id: row.experiment_id },
      },
    ]),
  );
  return new Map(
    rows.flatMap(({ key, group_key }) => {
      const place = byGroup.get(group_key);
      return place === undefined ? [] : [[key, place]];
    }),
  );
}

function selectPlaces(db: Db, groups: readonly bigint[]) {
  return db
    .selectFrom('groups as g')
    .innerJoin('stages as s', 's.key', 'g.stage')
    .innerJoin('runs as u', 'u.key', 'g.run')
    .innerJoin('experiments as e', 'e.key', 'u.experiment')
    .select(['g.key as group_key', 'g.id as group_id', 's.key as stage_key', 's.id as stage_id', 's.kind'])
    .select(['u.key as run_key', 'u.id as run_id', 'u.plan', 'e.key as experiment_key', 'e.id as experiment_id'])
    .where('g.key', 'in', groups)
    .where('u.hidden', '=', 0)
    .where('s.status', 'in', CLAIMABLE)
    .where('u.status', 'in', CLAIMABLE);
}

/** Few rollouts have an override, and those that have it had an attempt before: only they are read again. */
export async function readOverridden(
  engine: Engine,
  tx: Tx,
  queued: readonly QueuedRow[],
): Promise<Map<bigint, RolloutRow>> {
  const keys = queued.filter(({ override }) => override !== null).map(({ key }) => key);
  if (keys.length === 0) return new Map();
  const rows = await selectRollouts(engine, tx, 'FULL')
    .where(engine.among(sql.ref('r.key'), keys))
    .execute();
  return new Map(rows.map((row) => [row.key, row]));
}

/** Q4. */
const CLAIMABLE = ['PENDING', 'INITIALIZING', 'RUNNING'];

/** What the plan says of turns; undefined: nothing. */
export function plannedTurns(plan: Plan | undefined, kind: StageKind): bigint | undefined {
  const turns = plan?.stagePlans.find((stagePlan) => stagePlan.kind === kind)?.maxTurns ?? 0;
  return turns === 0 ? undefined : BigInt(turns);
}
