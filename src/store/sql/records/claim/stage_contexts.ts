import type { Pause } from '../../../../domain/pauses.ts';
import type { Plan, StageKind } from '../../../../domain/run.ts';
import type { Db } from '../../kit/engine.ts';
import { padded } from '../../kit/statement_shapes.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { readPauses } from '../run/pauses.ts';
import { readPlan } from '../run/rows.ts';
import type { QueuedRow, StageName } from './queue.ts';
import { IS_OPEN } from './queue.ts';
import type { LockedStartPoint } from './start_points.ts';

/** Stage, run and experiment of claimed rollouts, as far as claims return them. */
export interface StageContext {
  readonly stage: { readonly key: bigint; readonly id: string; readonly kind: StageKind };
  readonly run: {
    readonly key: bigint;
    readonly id: string;
    readonly plan: Plan | undefined;
    readonly pauses: readonly Pause[];
  };
  readonly experiment: { readonly key: bigint; readonly id: string };
}

/** By row key of the stage. */
export type StageContexts = ReadonlyMap<bigint, StageContext>;

/** A locked rollout whose attempt can begin. */
export interface Taken {
  readonly row: QueuedRow;
  readonly context: StageContext;
  /** Undefined if the attempt starts without a prefix. */
  readonly point: LockedStartPoint | undefined;
}

/**
 * Reads the stages of locked rollouts. Must run after the rollouts are locked, because a deletion hides the run before
 * it locks the run's rollouts. Stages are omitted if they
 * or their run are terminal or deleted, or their run is paused.
 */
export async function readContexts(tx: Transaction, rows: readonly QueuedRow[]): Promise<StageContexts> {
  const { engine } = tx;
  const stages = padded([...new Set(rows.map(({ stage }) => stage))]);
  return contextsOf(
    await engine.transactions.ask(
      tx.db,
      engine.kept.of('contexts of stages', [stages], (among) => selectContexts(engine.db).where('s.key', 'in', among)),
    ),
  );
}

/** Reads one stage by name. Used where the lock of the rollouts is sent directly before. */
export async function readContext(tx: Transaction, { namespace, id }: StageName): Promise<StageContexts> {
  const { engine } = tx;
  return contextsOf(
    await engine.transactions.ask(
      tx.db,
      engine.kept.of('context of stage', [namespace, id], (of, named) =>
        selectContexts(engine.db).where('s.namespace', '=', of).where('s.id', '=', named),
      ),
    ),
  );
}

function selectContexts(db: Db) {
  return db
    .selectFrom('stages as s')
    .innerJoin('runs as u', 'u.key', 's.run')
    .innerJoin('experiments as e', 'e.key', 'u.experiment')
    .select(['s.key as stage_key', 's.id as stage_id', 's.kind'])
    .select([
      'u.key as run_key',
      'u.id as run_id',
      'u.plan',
      'u.pauses',
      'e.key as experiment_key',
      'e.id as experiment_id',
    ])
    .where(IS_OPEN);
}

type ContextRow = Awaited<ReturnType<ReturnType<typeof selectContexts>['execute']>>[number];

function contextsOf(rows: readonly ContextRow[]): StageContexts {
  return new Map(
    rows.map((row) => [
      row.stage_key,
      {
        stage: { key: row.stage_key, id: row.stage_id, kind: row.kind as StageKind },
        run: { key: row.run_key, id: row.run_id, plan: readPlan(row.plan), pauses: readPauses(row.pauses) },
        experiment: { key: row.experiment_key, id: row.experiment_id },
      },
    ]),
  );
}

/** Returns the planned turns of a kind of stage; undefined if unset. */
export function plannedTurns(plan: Plan | undefined, kind: StageKind): bigint | undefined {
  const turns = plan?.stagePlans.find((stagePlan) => stagePlan.kind === kind)?.maxTurns ?? 0;
  return turns === 0 ? undefined : BigInt(turns);
}
