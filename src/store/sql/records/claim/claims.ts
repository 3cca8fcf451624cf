import { sql } from 'kysely';
import { runHint } from '../../../../domain/change.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Claim, ClaimOutcome, ClaimRequest } from '../../../contract/rollout.ts';
import { Contended, isOutage } from '../../../contract/store.ts';
import { Later } from '../../kit/engine.ts';
import { requestIdReused } from '../../kit/requests.ts';
import { serverIn } from '../../kit/status/status_changes.ts';
import { inOneRoundTrip, type Transaction, write } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import { readAttemptValues } from '../attempt/attempts.ts';
import { moveMany } from '../rollout/requeueing.ts';
import { readStart } from '../rollout/rows.ts';
import { createClaims, type Granted, previewClaims } from './create.ts';
import { findAnswers, type KeptAnswer, keepClaims, keyNameOf } from './kept_answers.ts';
import { type ClaimsEngine, isClaimable, isWanted, lockByKey, type QueuedRow, type Wanted } from './queue.ts';
import {
  readClaims,
  readContext,
  readContexts,
  readTasks,
  type StageContexts,
  type Taken,
  type TasksByKey,
} from './reading.ts';
import { batchesOf, type ClaimBatch, type ClaimScope, isDrained, isInScope, nextInMs, readScope } from './scope.ts';
import { holdStartPoints, nameOf } from './start_points.ts';

/**
 * Serves many claim requests in one transaction. Requests with equal filters share their statements. The transaction is
 * retried if another one stores the same request_id first.
 */
export async function claimRollouts(engine: ClaimsEngine, requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
  if (requests.length === 0) return [];
  const { outcomes, changedRuns } = await againWhenRaced(() =>
    write(engine, (tx) => new Claiming(tx, requests).claim()),
  );
  engine.changes.announce(changedRuns.map(runHint));
  return outcomes;
}

/**
 * Maximum number of rounds in which a claim replaces rollouts that cannot begin. Each round locks more rollouts; later
 * claims find the rest.
 */
const ROUNDS = 6;
const LOOK_AHEAD = 16;

/** A filter with the stages and tasks that it selects. */
interface OpenBatch extends ClaimBatch {
  readonly scope: ClaimScope;
  readonly prelocked: Prelocked | undefined;
}

/** Rollouts that were locked before their stage was known to be claimable. */
interface Prelocked {
  readonly rows: readonly QueuedRow[];
  readonly contexts: StageContexts;
}

/** Part of a response without claims: whether and when a rollout can be claimed later. */
type Remainder = Pick<Extract<ClaimOutcome, { kind: 'claimed' }>, 'drained' | 'nextInMs'>;

interface Claimed {
  readonly outcomes: ClaimOutcome[];
  readonly changedRuns: readonly bigint[];
}

class Claiming {
  readonly #tx: Transaction<ClaimsEngine>;
  readonly #requests: readonly ClaimRequest[];
  readonly #outcomes = new Map<number, ClaimOutcome>();
  /** Keys of rollouts that this transaction has locked, so that no other filter locks them again. */
  readonly #lockedKeys: bigint[] = [];
  /** Rollouts whose start point is unusable, and the reason. */
  readonly #failing: { readonly row: QueuedRow; readonly why: string }[] = [];
  readonly #changedRuns = new Set<bigint>();
  /** Tasks and validators that were read to compute the size of an answer. */
  #tasks: TasksByKey = new Map();

  constructor(tx: Transaction<ClaimsEngine>, requests: readonly ClaimRequest[]) {
    this.#tx = tx;
    this.#requests = requests;
  }

  async claim(): Promise<Later<Claimed>> {
    const tx = this.#tx;
    const requests = this.#requests;
    const batches = batchesOf(requests);
    const [, kept, scopes, prelocked] = await inOneRoundTrip([
      this.#begin(),
      findAnswers(tx, requests),
      inOneRoundTrip(batches.map((batch) => this.#scopeOf(batch))),
      batches.length === 1 ? this.#lockAhead(batches[0]!) : undefined,
    ]);
    const repeated = await this.#answerKept(kept);
    const open = this.#openBatches(batches, scopes, prelocked, repeated);
    const granted: Granted[] = [];
    for (const batch of open) granted.push(...(await this.#assign(batch, await this.#take(batch))));
    const claims = await createClaims(tx, granted, this.#tasks);
    await this.#failStartless();
    const left = await this.#leftOf(open, granted);
    await keepClaims(tx, requests, granted);
    return new Later(claims.value.then((made) => this.#answer(open, repeated, granted, made, left)));
  }

  /** Must be the first statement. Reads time and mark. */
  async #begin(): Promise<void> {
    const { now, mark } = await this.#tx.engine.claims.begin(this.#tx.db);
    this.#tx.stamp(now, mark);
  }

  #answer(
    open: readonly OpenBatch[],
    repeated: ReadonlyMap<number, number>,
    granted: readonly Granted[],
    claims: readonly Claim[],
    left: ReadonlyMap<OpenBatch, Remainder>,
  ): Claimed {
    this.#answerFresh(open, granted, claims, left);
    // Two requests with the same key at the same time get the same outcome.
    for (const [index, first] of repeated) this.#outcomes.set(index, this.#outcomeAt(first));
    return {
      outcomes: this.#requests.map((_request, index) => this.#outcomeAt(index)),
      changedRuns: [...this.#changedRuns],
    };
  }

  #outcomeAt(index: number): ClaimOutcome {
    const outcome = this.#outcomes.get(index);
    if (outcome === undefined) throw new Error('a request was not answered');
    return outcome;
  }

  /**
   * ID1, Q2: answers requests whose key was stored before with their claims that are still live. Returns the requests
   * that repeat a key of this batch, each with the first request that has the key.
   */
  async #answerKept(kept: ReadonlyMap<string, KeptAnswer>): Promise<Map<number, number>> {
    const repeated = new Map<number, number>();
    const first = new Map<string, number>();
    for (const [index, request] of this.#requests.entries()) {
      const { caller, key } = request;
      const name = keyNameOf(request);
      const before = name === undefined ? undefined : (kept.get(name) ?? this.#requests[first.get(name) ?? -1]?.key);
      if (name === undefined || key === undefined) continue;
      if (before === undefined) first.set(name, index);
      else if (before.requestDigest !== key.requestDigest) {
        this.#outcomes.set(index, { kind: 'refused', error: requestIdReused(key.requestId) });
      } else if ('rollouts' in before) {
        const claims = await readClaims(this.#tx.in(caller.namespace), before.rollouts);
        this.#outcomes.set(index, { kind: 'claimed', claims, drained: false });
      } else repeated.set(index, first.get(name) ?? index);
    }
    return repeated;
  }

  /** Returns the stages and tasks that a filter selects, or the error with which its requests are rejected. */
  async #scopeOf({ wanted }: ClaimBatch): Promise<ClaimScope | AnabranchError> {
    try {
      return await readScope(this.#tx, wanted);
    } catch (error) {
      if (!(error instanceof AnabranchError) || error instanceof Contended || isOutage(error)) throw error;
      return error;
    }
  }

  /** Optimistic: locks the next queued rollouts of the requested stage before checking that the stage is claimable. */
  async #lockAhead({ wanted, indexes }: ClaimBatch): Promise<Prelocked | undefined> {
    const { caller, runId, stageId, taskIds, rolloutIds, labels, minPriority } = wanted;
    const isPlain = taskIds.length === 0 && rolloutIds.length === 0 && labels.size === 0 && minPriority <= 0;
    if (stageId === undefined || runId !== undefined || !isPlain) return undefined;
    const tx = this.#tx;
    const stage = { namespace: caller.namespace, id: stageId };
    // Rollouts that are locked here are invisible to other claims, so repeated requests count once.
    const once = Map.groupBy(indexes, (index) => keyNameOf(this.#requests[index]!) ?? index);
    const limit = this.#wantedOf([...once.values()].flatMap(([first = -1]) => first));
    const [rows, found] = await inOneRoundTrip([
      tx.engine.claims.lockNext(tx.db, stage, limit),
      readContext(tx, stage),
    ]);
    return { rows, contexts: found };
  }

  /** Returns how many rollouts these requests ask for. */
  #wantedOf(indexes: readonly number[]): number {
    return indexes.reduce((sum, index) => sum + (this.#requests[index]?.trajectories.length ?? 0), 0);
  }

  /**
   * Returns the filters that have unanswered requests, with their selections. Rejects requests whose stage or run was
   * not found.
   */
  #openBatches(
    batches: readonly ClaimBatch[],
    scopes: readonly (ClaimScope | AnabranchError)[],
    prelocked: Prelocked | undefined,
    repeated: ReadonlyMap<number, number>,
  ): OpenBatch[] {
    return batches.flatMap(({ wanted, indexes }, i): OpenBatch[] => {
      const scope = scopes[i]!;
      const open = indexes.filter((index) => !this.#outcomes.has(index) && !repeated.has(index));
      if (!(scope instanceof AnabranchError))
        return open.length === 0 ? [] : [{ wanted, indexes: open, scope, prelocked }];
      for (const index of open) this.#outcomes.set(index, { kind: 'refused', error: scope });
      return [];
    });
  }

  /** Locks the next rollouts of a filter and returns those that can begin. */
  async #take({ wanted, indexes, scope, prelocked }: OpenBatch): Promise<Taken[]> {
    const { queues } = scope;
    const { labels, minPriority } = wanted;
    const limit = this.#wantedOf(indexes);
    const taken: Taken[] = [];
    for (let round = 0; round < ROUNDS && taken.length < limit && queues.length > 0; round += 1) {
      const asked = round === 0 ? limit : Math.max(limit - taken.length, LOOK_AHEAD * 4 ** round);
      const known = round === 0 ? prelocked : undefined;
      const rows = known?.rows ?? (await this.#lock(scope, { labels, minPriority, except: this.#lockedKeys }, asked));
      if (rows.length === 0) break;
      for (const { key } of rows) this.#lockedKeys.push(key);
      taken.push(
        ...(await this.#withStartPoints(wanted.caller.namespace, rows, limit - taken.length, known?.contexts)),
      );
      if (rows.length < asked) break;
    }
    return taken;
  }

  #lock(scope: ClaimScope, wanted: Wanted, limit: number): Promise<QueuedRow[]> {
    const tx = this.#tx;
    const { queues, rollouts } = scope;
    if (rollouts === undefined) return tx.engine.claims.lockQueued(tx.db, queues, wanted, limit);
    const stages = queues.map(({ stage }) => stage);
    const isClaimableNow = isWanted(tx.engine.sql, wanted, isClaimable(tx.engine.sql));
    return lockByKey(tx, rollouts, limit, sql`${isInScope(tx.engine.sql, scope, stages)} and ${isClaimableNow}`);
  }

  /**
   * Returns at most `most` locked rollouts with stage, run and start point. A rollout with an unusable start point is
   * recorded in `failing`. Rollouts beyond `most` stay PENDING.
   */
  async #withStartPoints(
    namespace: string,
    rows: readonly QueuedRow[],
    most: number,
    known: StageContexts | undefined,
  ): Promise<Taken[]> {
    const tx = this.#tx;
    const points = rows.flatMap((row) => readStart(row) ?? []);
    const [contexts, held] = await inOneRoundTrip([
      known ?? readContexts(tx, rows),
      holdStartPoints(tx.in(namespace), points),
    ]);
    const taken: Taken[] = [];
    for (const row of rows) {
      const context = contexts.get(row.stage);
      const start = readStart(row);
      const point = start && held.get(nameOf(start));
      // The run was paused or is being deleted, or a deletion holds the start point: the rollout stays PENDING.
      if (context === undefined || point === 'busy') continue;
      if (point === 'missing') {
        this.#failing.push({ row, why: `its start point, ${nameStart(row)}, was deleted` });
      } else if (point instanceof AnabranchError) {
        this.#failing.push({ row, why: `${point.reason}: its start point is ${nameStart(row)}. ${point.message}` });
      } else if (taken.length < most) taken.push({ row, context, point });
    }
    return taken;
  }

  /**
   * Assigns rollouts in queue order to requests in order of arrival. A rollout that exceeds the size of an answer goes
   * to the next request or stays PENDING.
   */
  async #assign({ indexes }: OpenBatch, taken: readonly Taken[]): Promise<Granted[]> {
    if (taken.length > 1 && indexes.some((index) => this.#wantedOf([index]) > 1)) await this.#readTasks(taken);
    let next = 0;
    return indexes.flatMap((index) => {
      const request = this.#requests[index]!;
      const share = taken
        .slice(next, next + request.trajectories.length)
        .map((each, i): Granted => ({ ...each, at: index, request, ids: request.trajectories[i]! }));
      const fitting =
        share.length > 1 ? request.countFitting(previewClaims(share, this.#tasks, this.#tx.now)) : share.length;
      next += fitting;
      return share.slice(0, fitting);
    });
  }

  /** The size of an answer depends on tasks and validators. */
  async #readTasks(taken: readonly Taken[]): Promise<void> {
    const rows = taken.map(({ row }) => row);
    this.#tasks = await readTasks(this.#tx, rows, this.#tasks);
  }

  /** Q3: fails rollouts that cannot begin at their start point. */
  async #failStartless(): Promise<void> {
    if (this.#failing.length === 0) return;
    const tx = this.#tx;
    const failing = this.#failing;
    const shown = await readAttemptValues(
      tx,
      failing.map(({ row }) => row),
    );
    const moves = failing.map(({ row, why }) => {
      const caller = serverIn(row.namespace);
      const details = { caller, row, head: undefined, message: why, metadataJson: '' };
      return { ...details, to: 'FAILED', shown: shown(row.key), ended: undefined } as const;
    });
    await moveMany(tx, moves);
    for (const { row } of failing) this.#changedRuns.add(row.run);
  }

  /** Returns what is reported to requests that got no rollouts. */
  async #leftOf(
    batches: readonly OpenBatch[],
    granted: readonly Granted[],
  ): Promise<ReadonlyMap<OpenBatch, Remainder>> {
    const tx = this.#tx;
    const served = new Set(granted.map(({ at }) => at));
    const left = new Map<OpenBatch, Remainder>();
    for (const batch of batches) {
      const { indexes, scope, wanted } = batch;
      if (indexes.every((index) => served.has(index))) continue;
      const [drained, next] = await inOneRoundTrip([isDrained(tx, scope, wanted), nextInMs(tx, scope, wanted)]);
      left.set(batch, { drained, nextInMs: next });
    }
    return left;
  }

  #answerFresh(
    batches: readonly OpenBatch[],
    granted: readonly Granted[],
    claims: readonly Claim[],
    left: ReadonlyMap<OpenBatch, Remainder>,
  ): void {
    const of = new Map<number, Claim[]>();
    for (const [i, { at, row }] of granted.entries()) {
      const list = of.get(at);
      if (list === undefined) of.set(at, [claims[i]!]);
      else list.push(claims[i]!);
      this.#changedRuns.add(row.run);
    }
    for (const batch of batches) {
      for (const index of batch.indexes) {
        const own = of.get(index);
        const { drained = false, nextInMs: next } = (own === undefined ? left.get(batch) : undefined) ?? {};
        this.#outcomes.set(index, { kind: 'claimed', claims: own ?? [], drained, nextInMs: next });
      }
    }
  }
}

function nameStart({ start_step, start_trajectory }: QueuedRow): string {
  return `step ${start_step} of trajectory ${start_trajectory}`;
}
