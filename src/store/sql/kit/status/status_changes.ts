import type { Selectable, SelectQueryBuilder } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import {
  environmentNotFound,
  rolloutNotFound,
  runNotFound,
  stageNotFound,
  trajectoryNotFound,
} from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import type { Page } from '../../../contract/request.ts';
import type { MoveDetails } from '../../../contract/run.ts';
import type { StatusChange, StatusOwner } from '../../../contract/status_change.ts';
import type { Db } from '../engine.ts';
import { STATUS_CHANGES } from '../tables/changes.ts';
import type { StagesTable, StatusChangesTable, Tables } from '../tables.ts';
import type { CallerTransaction, ReadScope, Transaction } from '../transaction.ts';
import { readReal } from '../values.ts';

/**
 * The owner of a status: noun, row key, and the tree of its history. The tree is the trajectory's own, or the row key
 * of the run for a run and everything in it.
 */
export interface StatusEntity {
  readonly tree: bigint;
  readonly noun: StatusOwner['noun'];
  readonly key: bigint;
}

/** The caller whom StatusChanges name if the server moves a status on its own. */
export function serverIn(namespace: string): Caller {
  return { namespace, actor: 'anabranch' };
}

export interface StatusMove {
  /** Number of earlier changes. */
  readonly ordinal: bigint;
  readonly from: Status | null;
  readonly to: Status;
  readonly message: string;
  readonly phase?: string;
  readonly metadataJson?: string;
  /** Undefined if unknown. */
  readonly progressPercent?: number | undefined;
}

/**
 * L5: records a status change in the transaction that makes it; the creation is the first. The statement need not be
 * awaited before the commit.
 */
export function recordStatus(tx: CallerTransaction, entity: StatusEntity, move: StatusMove): Promise<void> {
  return recordStatuses(tx, [{ caller: tx.caller, entity, move }]);
}

/** Returns the message of the end of a terminal row, because the message in the row may have been changed since. */
export async function messageOfEnd(
  tx: Transaction,
  { tree, noun, key }: StatusEntity,
  row: { readonly status: string; readonly status_message: string; readonly status_changes: bigint },
): Promise<string> {
  if (!isTerminal(row.status as Status)) return row.status_message;
  const { message } = await tx.db
    .selectFrom('status_changes')
    .select('message')
    .where('tree', '=', tree)
    .where('entity_kind', '=', noun)
    .where('entity', '=', key)
    .where('ordinal', '=', row.status_changes - 1n)
    .executeTakeFirstOrThrow();
  return message;
}

export interface RecordedMove {
  readonly caller: Caller;
  readonly entity: StatusEntity;
  readonly move: StatusMove;
}

/** Records many status changes in few statements. */
export async function recordStatuses(tx: Transaction, moves: readonly RecordedMove[]): Promise<void> {
  const rows = moves.map(({ caller, entity, move }) => ({
    tree: entity.tree,
    entity_kind: entity.noun,
    entity: entity.key,
    ordinal: move.ordinal,
    namespace: caller.namespace,
    old_status: move.from,
    new_status: move.to,
    phase: move.phase ?? '',
    message: move.message,
    metadata_json: move.metadataJson ?? '',
    actor: caller.actor,
    progress_percent: move.progressPercent ?? null,
    change_time: tx.now,
  }));
  await tx.engine.bulk.insert(tx.db, STATUS_CHANGES, rows);
}

export async function listStatusChanges(
  scope: ReadScope,
  owner: StatusOwner,
  page: Page<bigint>,
  ascending: boolean,
): Promise<StatusChange[]> {
  const query = scope.db
    .selectFrom(ownerQuery(scope.db, scope.namespace, owner).as('o'))
    .innerJoin('status_changes as c', (join) =>
      join.onRef('c.tree', '=', 'o.tree').on('c.entity_kind', '=', owner.noun).onRef('c.entity', '=', 'o.key'),
    )
    .select(COLUMNS)
    .$if(page.after !== undefined, (all) => all.where('c.ordinal', ascending ? '>' : '<', page.after as bigint));
  const rows = await query
    .orderBy('c.ordinal', ascending ? 'asc' : 'desc')
    .limit(page.limit)
    .execute();
  // Every visible owner has a first change, its creation, so only a later page can be empty.
  if (rows.length === 0 && (page.after === undefined || !(await isThere(scope, owner)))) {
    throw NOT_FOUND[owner.noun](owner.id);
  }
  return rows.map(readChange);
}

const COLUMNS = [
  'c.ordinal',
  'c.old_status',
  'c.new_status',
  'c.phase',
  'c.message',
  'c.metadata_json',
  'c.actor',
  'c.progress_percent',
  'c.change_time',
] as const;

function readChange(
  row: Omit<Selectable<StatusChangesTable>, 'tree' | 'entity_kind' | 'entity' | 'namespace'>,
): StatusChange {
  return {
    ordinal: row.ordinal,
    oldStatus: row.old_status === null ? undefined : (row.old_status as Status),
    newStatus: row.new_status as Status,
    phase: row.phase,
    message: row.message,
    metadataJson: row.metadata_json,
    actor: row.actor,
    progressPercent: row.progress_percent === null ? undefined : readReal(row.progress_percent),
    changeTime: parseInstant(row.change_time),
  };
}

async function isThere({ db, namespace }: ReadScope, owner: StatusOwner): Promise<boolean> {
  return (await ownerQuery(db, namespace, owner).executeTakeFirst()) !== undefined;
}

/** Selects the tree and the row key of a visible owner. */
function ownerQuery(db: Db, namespace: string, { noun, id }: StatusOwner) {
  if (noun === 'TRAJECTORY') {
    const own = db.selectFrom('trajectories as t').select(['t.tree', 't.key']);
    return own.where('t.namespace', '=', namespace).where('t.id', '=', id).where('t.hidden', '=', 0);
  }
  if (noun === 'RUN') {
    const own = db.selectFrom('runs as r').select(['r.key as tree', 'r.key']);
    return own.where('r.namespace', '=', namespace).where('r.id', '=', id).where('r.hidden', '=', 0);
  }
  const own = inRuns(db, noun).innerJoin('runs as r', 'r.key', 's.run').select(['s.run as tree', 's.key']);
  return own.where('s.namespace', '=', namespace).where('s.id', '=', id).where('r.hidden', '=', 0);
}

/** The three tables share the columns that are used here. */
function inRuns(db: Db, noun: 'STAGE' | 'ROLLOUT' | 'ENVIRONMENT') {
  if (noun === 'STAGE') return db.selectFrom('stages as s');
  const table = noun === 'ROLLOUT' ? db.selectFrom('rollouts as s') : db.selectFrom('environments as s');
  return table as unknown as SelectQueryBuilder<Tables & { s: StagesTable }, 's', object>;
}

const NOT_FOUND = {
  TRAJECTORY: trajectoryNotFound,
  RUN: runNotFound,
  STAGE: stageNotFound,
  ROLLOUT: rolloutNotFound,
  ENVIRONMENT: environmentNotFound,
} as const;

/** The columns of runs, stages and environments that describe their status. */
export interface StatusRow {
  readonly status: string;
  readonly status_message: string;
  readonly phase: string;
  readonly start_time: string | null;
  readonly status_changes: bigint;
  /** Only runs have a result. */
  readonly result_json?: string;
}

/**
 * Returns what every verb writes to the row of a run, stage or environment. `start_time` is of the first start,
 * `end_time` of the current end.
 */
export function movedColumns(row: StatusRow, to: Status, details: MoveDetails, now: string) {
  return {
    status: to,
    status_message: details.message,
    phase: details.phase ?? row.phase,
    start_time: row.start_time ?? (to === 'RUNNING' ? now : null),
    end_time: isTerminal(to) ? now : null,
    status_changes: row.status_changes + 1n,
  };
}

/** Returns the StatusChange of the same verb. `row` is the row before it. */
export function statusMove(row: StatusRow, to: Status, details: MoveDetails, progressPercent?: number): StatusMove {
  return {
    ordinal: row.status_changes,
    from: row.status as Status,
    to,
    message: details.message,
    phase: details.phase ?? row.phase,
    metadataJson: details.metadataJson,
    progressPercent,
  };
}
