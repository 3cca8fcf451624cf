import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint } from '../../../../domain/change.ts';
import { AnabranchError, invalidField, taskNotFound, trajectoryNotFound } from '../../../../domain/errors.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { IdempotencyKey } from '../../../contract/request.ts';
import type { CreatedRollout, CreatedRollouts, NewClaims, NewRollout } from '../../../contract/rollout.ts';
import { keysById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { differingFields, GIVEN_COLUMNS, type GivenRow, givenColumns } from '../../kit/given_fields.ts';
import { recordStatuses } from '../../kit/status/status_changes.ts';
import { ROLLOUTS } from '../../kit/tables/rollouts.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { type CallerTransaction, inOneRoundTrip, writeAs } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import { branchPointBeyondEnd } from '../../log/trajectory/create.ts';
import { findById } from '../../log/trajectory/rows.ts';
import { NO_ATTEMPT_VALUES } from '../attempt/attempts.ts';
import { claimCreated } from '../claim/create.ts';
import { type AnsweredRollout, findCreation, keepCreation } from '../claim/kept_answers.ts';
import { readClaims } from '../claim/reading.ts';
import { countInGroups, type GroupRef, getOrCreateGroups, lockGroups } from '../group/groups.ts';
import { type KeptStage, keepStage, type StageKeys } from '../stage/rows.ts';

/** Q6: creates the missing rollouts. Retries if a concurrent request creates some of them, and then finds them. */
export async function createRollouts(
  engine: Engine,
  caller: Caller,
  request: CreationRequest,
): Promise<CreatedRollouts> {
  const { made, run } = await againWhenRaced(() =>
    writeAs(engine, caller, async (tx) => {
      const stage = await keepStage(tx, request.stageId);
      const creation = new RolloutCreation(tx, stage, request);
      return { made: await creation.run(), run: stage.run };
    }),
  );
  if (made.rollouts.some(({ existed }) => !existed)) engine.changes.announce([runHint(run)]);
  return made;
}

interface CreationRequest {
  readonly stageId: string;
  readonly rollouts: readonly NewRollout[];
  readonly key: IdempotencyKey | undefined;
  readonly claim: NewClaims | undefined;
}

/** A rollout of the request with its number, which the server has assigned if the request has none. */
interface Numbered extends NewRollout {
  readonly number: bigint;
}

class RolloutCreation {
  readonly #tx: CallerTransaction;
  readonly #stage: KeptStage;
  readonly #request: CreationRequest;

  constructor(tx: CallerTransaction, stage: KeptStage, request: CreationRequest) {
    this.#tx = tx;
    this.#stage = stage;
    this.#request = request;
  }

  async run(): Promise<CreatedRollouts> {
    await inOneRoundTrip([this.#tx.readNow(), this.#tx.readMark()]);
    const groups = await this.#groups();
    const old = [...groups.values()].filter(({ created }) => !created).map(({ key }) => key);
    // The locks let one call at a time number the rollouts of a group. Behind them, a concurrent call with the same key
    // has committed, and leases begin. Calls with numbers meet at unique indexes.
    const numbers = this.#request.rollouts.some(({ number }) => number === undefined);
    const [, , earlier] = await inOneRoundTrip([
      lockGroups(this.#tx, numbers ? old : []),
      this.#tx.readNow(),
      findCreation(this.#tx, this.#request.key),
    ]);
    if (earlier !== undefined) return this.#repeat(earlier);
    const rollouts = await this.#numbered(groups);
    const there = await this.#there(old, rollouts);
    this.#refuseDifferent(rollouts, there);
    const missing = rollouts.filter(({ groupNumber, number }) => !there.has(tupleKey(groupNumber, number)));
    this.#requireOpenQueue(missing);
    await this.#refuseTaken(missing);
    const tasks = await this.#tasks(missing);
    await this.#requireStarts(missing);
    const keys = await this.#insert(missing, groups, tasks);
    const { claim, key } = this.#request;
    const claims = claim === undefined ? [] : await claimCreated(this.#tx, this.#stage, keys, claim);
    const attempt = claim === undefined ? 0n : 1n;
    const made = new Map(
      missing.map(({ groupNumber, number, id }, i): [string, AnsweredRollout] => {
        return [tupleKey(groupNumber, number), { id, key: keys[i]!, existed: false, attempt }];
      }),
    );
    const named = rollouts.map(({ groupNumber, number }): AnsweredRollout => {
      const at = tupleKey(groupNumber, number);
      return made.get(at) ?? { ...there.get(at)!, existed: true, attempt: 0n };
    });
    await keepCreation(this.#tx, key, this.#stage.run, named);
    const created = rollouts.map(({ groupNumber, number }, i): CreatedRollout => {
      const { id, existed } = named[i]!;
      return { rolloutId: id, groupId: groups.get(groupNumber)?.id ?? '', number, existed };
    });
    return { rollouts: created, claims };
  }

  /**
   * ID1: returns the rollouts of an earlier call as that call did, and those of its claims that are still live. The
   * rollouts exist as long as their stage.
   */
  async #repeat(earlier: readonly Omit<AnsweredRollout, 'id'>[]): Promise<CreatedRollouts> {
    const keys = earlier.map(({ key }) => key);
    const rows = await this.#tx.db
      .selectFrom('rollouts as r')
      .innerJoin('groups as g', 'g.key', 'r.group_key')
      .select(['r.key', 'r.id', 'r.number', 'g.id as group_id'])
      .where(this.#tx.engine.sql.among(sql.ref('r.key'), keys))
      .execute();
    const byKey = new Map(rows.map((row) => [row.key, row]));
    const rollouts = earlier.map(({ key, existed }): CreatedRollout => {
      const { id, group_id, number } = byKey.get(key)!;
      return { rolloutId: id, groupId: group_id, number, existed };
    });
    const claimed = earlier.filter(({ attempt }) => attempt > 0n);
    return { rollouts, claims: claimed.length === 0 ? [] : await readClaims(this.#tx, claimed) };
  }

  /** Numbers the rollouts without a number, in order, above all others of their group. Errors: INVALID_REQUEST. */
  async #numbered(groups: ReadonlyMap<bigint, GroupRef>): Promise<Numbered[]> {
    const open = new Set(
      this.#request.rollouts.flatMap(({ number, groupNumber }) => (number === undefined ? groupNumber : [])),
    );
    const last = await this.#lastNumbers([...open].flatMap((number) => groups.get(number) ?? []));
    for (const { groupNumber, number = -1n } of this.#request.rollouts) {
      if (number > (last.get(groupNumber) ?? -1n)) last.set(groupNumber, number);
    }
    return this.#request.rollouts.map((rollout, i) => {
      if (rollout.number !== undefined) return { ...rollout, number: rollout.number };
      const number = (last.get(rollout.groupNumber) ?? -1n) + 1n;
      if (number > LARGEST_NUMBER) throw noNumberLeft(rollout, i);
      last.set(rollout.groupNumber, number);
      return { ...rollout, number };
    });
  }

  /** Returns the largest numbers of rollouts by group number. The groups are locked, or were created here. */
  async #lastNumbers(groups: readonly GroupRef[]): Promise<Map<bigint, bigint>> {
    const old = groups.filter(({ created }) => !created).map(({ key }) => key);
    if (old.length === 0) return new Map();
    const { engine, db } = this.#tx;
    const { rows } = await sql<{ readonly number: bigint; readonly last: bigint | null }>`select g.number,
      (select max(r.number) from ${engine.sql.table('rollouts')} as r where r.group_key = g.key) as last
      from ${engine.sql.table('groups')} as g where ${engine.sql.among(sql.ref('g.key'), old)}`.execute(db);
    return new Map(rows.map(({ number, last }) => [number, last ?? -1n]));
  }

  #groups(): Promise<Map<bigint, GroupRef>> {
    const first = new Map<bigint, NewRollout>();
    for (const rollout of this.#request.rollouts) {
      if (!first.has(rollout.groupNumber)) first.set(rollout.groupNumber, rollout);
    }
    const groups = [...first.values()].map(({ groupId, groupNumber, onSuccess }) => {
      return { id: groupId, number: groupNumber, onSuccess };
    });
    return getOrCreateGroups(this.#tx, this.#stage, groups);
  }

  /** Returns the existing rollouts by group number and number. */
  async #there(old: readonly bigint[], rollouts: readonly Numbered[]): Promise<Map<string, ExistingRow>> {
    if (old.length === 0) return new Map();
    const numbers = [...new Set(rollouts.map(({ number }) => number))];
    const rows = await this.#tx.db
      .selectFrom('rollouts as r')
      .leftJoin('tasks as k', 'k.key', 'r.task')
      .select(['r.key', 'r.group_number', 'r.number', 'r.id', 'k.id as task_id', 'r.first_given'])
      .select(GIVEN_COLUMNS.map((column) => `r.${column}` as const))
      .where(this.#tx.engine.sql.among(sql.ref('r.group_key'), old))
      .where(this.#tx.engine.sql.among(sql.ref('r.number'), numbers))
      .execute();
    return new Map(rows.map((row) => [tupleKey(row.group_number, row.number), row]));
  }

  /** Errors: ROLLOUT_CONFLICT. */
  #refuseDifferent(rollouts: readonly Numbered[], there: ReadonlyMap<string, ExistingRow>): void {
    for (const rollout of rollouts) {
      const existing = there.get(tupleKey(rollout.groupNumber, rollout.number));
      if (existing === undefined) continue;
      const fields = differingFields(rollout, existing.task_id ?? '', existing);
      if (fields.length > 0) throw rolloutConflict(rollout, existing.id, fields);
    }
  }

  /** A retry of a completed call creates nothing, so it succeeds on a closed queue too. Errors: QUEUE_CLOSED. */
  #requireOpenQueue([first]: readonly Numbered[]): void {
    if (first !== undefined && !this.#stage.isQueueOpen) throw queueClosed(this.#stage.id, first);
  }

  /** Errors: ROLLOUT_EXISTS. */
  async #refuseTaken(missing: readonly NewRollout[]): Promise<void> {
    const seen = new Set<string>();
    for (const { id } of missing) {
      if (seen.has(id)) throw rolloutExists(id);
      seen.add(id);
    }
    const [taken] = (await keysById(this.#tx, 'rollouts', [...seen])).keys();
    if (taken !== undefined) throw rolloutExists(taken);
  }

  /** Returns row keys by task id. Errors: TASK_NOT_FOUND. */
  async #tasks(missing: readonly NewRollout[]): Promise<Map<string, bigint>> {
    const ids = [...new Set(missing.map(({ taskId }) => taskId))].filter((id) => id !== '');
    const found = await keysById(this.#tx, 'tasks', ids);
    const unknown = ids.find((id) => !found.has(id));
    if (unknown !== undefined) throw taskNotFound(unknown);
    return found;
  }

  /**
   * Requires that start points exist now. Each claim checks its start point again. Errors: TRAJECTORY_NOT_FOUND,
   * BRANCH_POINT_BEYOND_END.
   */
  async #requireStarts(missing: readonly NewRollout[]): Promise<void> {
    const furthest = new Map<string, bigint>();
    for (const { startFrom } of missing) {
      if (startFrom === undefined) continue;
      const { trajectoryId, stepNumber } = startFrom;
      const before = furthest.get(trajectoryId);
      if (before === undefined || stepNumber > before) furthest.set(trajectoryId, stepNumber);
    }
    const sources = await inOneRoundTrip([...furthest.keys()].map((id) => findById(this.#tx, id)));
    for (const [i, [id, stepNumber]] of [...furthest].entries()) {
      const source = sources[i];
      if (source === undefined || source.hidden) throw trajectoryNotFound(id);
      if (stepNumber >= source.nextStepNumber) throw branchPointBeyondEnd(source, stepNumber);
    }
  }

  /** Returns the row keys. */
  async #insert(
    missing: readonly Numbered[],
    groups: ReadonlyMap<bigint, GroupRef>,
    tasks: ReadonlyMap<string, bigint>,
  ): Promise<bigint[]> {
    if (missing.length === 0) return [];
    const tx = this.#tx;
    const stage = this.#stage;
    const { engine, caller } = tx;
    const keys = await engine.keys.nextMany(tx.db, 'rollouts', missing.length);
    const counts = new Map<bigint, { rollouts: bigint }>();
    const rows = missing.map((rollout, i) => {
      const group = groups.get(rollout.groupNumber);
      if (group === undefined) throw new Error('the group created in this transaction is missing');
      counts.set(group.key, { rollouts: (counts.get(group.key)?.rollouts ?? 0n) + 1n });
      const task = rollout.taskId === '' ? null : (tasks.get(rollout.taskId) ?? null);
      return newRow(tx, stage, rollout, { key: keys[i]!, group: group.key, task });
    });
    // Locks the groups. A call that numbers rollouts locks them first too, and could wait for these rows.
    await countInGroups(tx, counts);
    await engine.bulk.insert(tx.db, ROLLOUTS, rows);
    const creations = keys.map((key) => {
      const entity = { tree: stage.run, noun: 'ROLLOUT', key } as const;
      return { caller, entity, move: { ordinal: 0n, from: null, to: 'PENDING', message: '' } as const };
    });
    await recordStatuses(tx, creations);
    return keys;
  }
}

/** Returns the row of a new PENDING rollout. */
function newRow(
  { namespace, now, mark }: CallerTransaction,
  { run, key: stage }: StageKeys,
  rollout: Numbered,
  { key, group, task }: { readonly key: bigint; readonly group: bigint; readonly task: bigint | null },
): RowOf<typeof ROLLOUTS> {
  return {
    key,
    namespace,
    id: rollout.id,
    run,
    stage,
    group_key: group,
    group_number: rollout.groupNumber,
    number: rollout.number,
    task,
    ...givenColumns(rollout),
    refunded_attempts: 0n,
    status: 'PENDING',
    status_message: '',
    phase: '',
    attempt: 0n,
    tree: null,
    trajectory: null,
    worker_id: '',
    claimer: '',
    lease_ms: 0n,
    lease_end_time: null,
    attempt_end_time: null,
    paused_us: 0n,
    ...NO_ATTEMPT_VALUES,
    first_given: '',
    claimable_time: now,
    end_time: null,
    create_time: now,
    update_time: now,
    status_changes: 1n,
    revision: 1n,
    mark,
  };
}

interface ExistingRow extends GivenRow {
  readonly key: bigint;
  readonly id: string;
  readonly task_id: string | null;
}

function rolloutConflict({ groupNumber, number }: Numbered, id: string, fields: readonly string[]): AnabranchError {
  const names = fields.map((field) => `\`${field}\``).join(', ');
  return new AnabranchError(
    'ROLLOUT_CONFLICT',
    `Number ${number} of group ${groupNumber} is rollout ${id}, which was created with other values of ${names}. Send the values of its creation, or use another number.`,
    { metadata: { rollout: id, fields: fields.join(',') } },
  );
}

function queueClosed(stageId: string, { groupNumber, number }: Numbered): AnabranchError {
  return new AnabranchError(
    'QUEUE_CLOSED',
    `The queue of stage ${stageId} is closed, so number ${number} of group ${groupNumber} cannot be created. Use another stage, or create all rollouts before the queue is closed (CloseQueue, or the end of the stage).`,
    { metadata: { stage: stageId } },
  );
}

const LARGEST_NUMBER = 2n ** 63n - 1n;

function noNumberLeft({ groupNumber }: NewRollout, index: number): AnabranchError {
  return invalidField(`rollouts[${index}].number`, `must be set: group ${groupNumber} has the largest number already`);
}

function rolloutExists(id: string): AnabranchError {
  return new AnabranchError(
    'ROLLOUT_EXISTS',
    `Id ${id} belongs to another rollout (with another group or number). Use another id, or none.`,
    { metadata: { rollout: id } },
  );
}
