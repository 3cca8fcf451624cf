import { AnabranchError } from '../../domain/errors.ts';
import { isOtherRequest } from '../../domain/request_digest.ts';
import type { Claim, ClaimOutcome, ClaimRequest } from '../contract/rollout.ts';
import { readShown } from './attempt_rows.ts';
import { nextInMs } from './claim_delays.ts';
import { type ClaimKey, findKeptClaims, keepClaims, keyNameOf } from './claim_keys.ts';
import { type Field, isDrained, type Line, linesOf, readField } from './claim_lines.ts';
import { type Granted, makeClaims, previewClaims } from './claim_making.ts';
import { type ClaimPlaces, readPlace, readPlaces, type Taken } from './claim_places.ts';
import { readClaims } from './claim_reading.ts';
import { type Assignments, readAssignments } from './claim_tasks.ts';
import { type Engine, Later, type QueuedRow, type Tx } from './engine.ts';
import { requestIdReused } from './requests.ts';
import { moveMany } from './requeueing.ts';
import { readStart } from './rollout_rows.ts';
import { holdStartPoints, nameOf } from './start_points.ts';
import { together } from './together.ts';
import { againWhenRaced } from './unique_violation.ts';

/**
 * Serves many claim requests in one transaction. Requests with equal filters share their statements. The transaction is
 * retried if another one stores the same request_id first.
 */
export async function claimRollouts(engine: Engine, requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
  if (requests.length === 0) return [];
  const { outcomes, changed } = await againWhenRaced(() =>
    engine.write((tx) => new Claiming(engine, tx, requests).claim()),
  );
  engine.announce(changed);
  return outcomes;
}

/** Actor of the status changes of rollouts that fail because their start point was deleted. */
const QUEUE = 'anabranch';

/**
 * Bound on the attempts to replace rollouts that cannot begin. Each round locks more rollouts; later claims find the
 * rest.
 */
const ROUNDS = 6;
const LOOK_AHEAD = 16;

/** A filter with the stages and tasks that it selects. */
interface OpenLine extends Line {
  readonly field: Field;
  readonly ahead: Ahead | undefined;
}

/** Rollouts that were locked before their stage was known to be claimable. */
interface Ahead {
  readonly rows: readonly QueuedRow[];
  readonly places: ClaimPlaces;
}

/** What a request without rollouts is told about later ones. */
type LeftOfLine = Pick<Extract<ClaimOutcome, { kind: 'claimed' }>, 'drained' | 'nextInMs'>;

interface Claimed {
  readonly outcomes: ClaimOutcome[];
  readonly changed: readonly bigint[];
}

class Claiming {
  private readonly engine: Engine;
  private readonly tx: Tx;
  private readonly requests: readonly ClaimRequest[];
  private readonly outcomes = new Map<number, ClaimOutcome>();
  /** Keys of rollouts that this transaction has locked, so that no other filter locks them again. */
  private readonly met: bigint[] = [];
  /** Rollouts whose start point is unusable, and the reason. */
  private readonly failing: { readonly row: QueuedRow; readonly why: string }[] = [];
  private readonly changed = new Set<bigint>();
  /** Tasks and validators that were read to compute the size of an answer. */
  private assignments: Assignments = new Map();

  constructor(engine: Engine, tx: Tx, requests: readonly ClaimRequest[]) {
    this.engine = engine;
    this.tx = tx;
    this.requests = requests;
  }

  async claim(): Promise<Later<Claimed>> {
    const { engine, tx, requests } = this;
    const lines = linesOf(requests);
    const [{ now, mark }, kept, fields, ahead] = await together([
      engine.beginClaim(tx),
      findKeptClaims(tx, requests),
      together(lines.map((line) => this.fieldOf(line))),
      lines.length === 1 ? this.lookAhead(lines[0]!) : undefined,
    ]);
    const repeated = await this.answerKept(kept);
    const open = this.openLines(lines, fields, ahead, repeated);
    const granted: Granted[] = [];
    for (const line of open) granted.push(...(await this.deal(line, await this.take(line), now)));
    const claims = await makeClaims(engine, tx, now, mark, granted, this.assignments);
    await this.failStartless(now);
    const left = await this.leftOf(open, granted);
    await keepClaims(engine, tx, now, requests, granted);
    return new Later(claims.value.then((made) => this.answer(open, repeated, granted, made, left)));
  }

  private answer(
    open: readonly OpenLine[],
    repeated: ReadonlyMap<number, number>,
    granted: readonly Granted[],
    claims: readonly Claim[],
    left: ReadonlyMap<OpenLine, LeftOfLine>,
  ): Claimed {
    this.answerFresh(open, granted, claims, left);
    // Two requests with the same key at the same time get the same outcome.
    for (const [place, first] of repeated) this.outcomes.set(place, this.outcomeAt(first));
    return { outcomes: this.requests.map((_request, place) => this.outcomeAt(place)), changed: [...this.changed] };
  }

  private outcomeAt(place: number): ClaimOutcome {
    const outcome = this.outcomes.get(place);
    if (outcome === undefined) throw new Error('a request was not answered');
    return outcome;
  }

  /**
   * ID1, Q2: answers requests whose key was stored before with their claims that are still live. Returns the requests
   * that repeat a key of this batch, each with the first request that has the key.
   */
  private async answerKept(kept: ReadonlyMap<string, ClaimKey>): Promise<Map<number, number>> {
    const repeated = new Map<number, number>();
    const first = new Map<string, number>();
    for (const [place, request] of this.requests.entries()) {
      const { caller, key } = request;
      const name = keyNameOf(request);
      const before = name === undefined ? undefined : (kept.get(name) ?? this.requests[first.get(name) ?? -1]?.key);
      if (name === undefined || key === undefined) continue;
      if (before === undefined) first.set(name, place);
      else if (isOtherRequest(before.requestDigest, key.requestDigest)) {
        this.outcomes.set(place, { kind: 'refused', error: requestIdReused(key.requestId) });
      } else if ('claims' in before) {
        const claims = await readClaims(this.engine, this.tx, caller.namespace, before.claims);
        this.outcomes.set(place, { kind: 'claimed', claims, drained: false });
      } else repeated.set(place, first.get(name) ?? place);
    }
    return repeated;
  }

  /** Returns an error if the requests must be rejected. */
  private async fieldOf({ wanted }: Line): Promise<Field | AnabranchError> {
    try {
      return await readField(this.engine, this.tx, wanted);
    } catch (error) {
      if (!(error instanceof AnabranchError) || error.reason === 'DATABASE_UNAVAILABLE') throw error;
      return error;
    }
  }

  /** Optimistic: locks the next queued rollouts of the requested stage before checking that the stage is claimable. */
  private async lookAhead({ wanted, places }: Line): Promise<Ahead | undefined> {
    const { caller, runId, stageId, taskIds, labels, minPriority } = wanted;
    const isPlain = taskIds.length === 0 && labels.size === 0 && minPriority <= 0;
    if (stageId === undefined || runId !== undefined || !isPlain) return undefined;
    const { engine, tx } = this;
    const stage = { namespace: caller.namespace, id: stageId };
    // Rollouts that are locked here are invisible to other claims, so repeated requests count once.
    const once = Map.groupBy(places, (place) => keyNameOf(this.requests[place]!) ?? place);
    const limit = this.wantedOf([...once.values()].flatMap(([first = -1]) => first));
    const [rows, found] = await together([engine.lockNext(tx, stage, limit), readPlace(engine, tx, stage)]);
    return { rows, places: found };
  }

  /** Returns how many rollouts these requests ask for. */
  private wantedOf(places: readonly number[]): number {
    return places.reduce((sum, place) => sum + (this.requests[place]?.trajectories.length ?? 0), 0);
  }

  /**
   * Returns the filters that have unanswered requests, with their selections. Rejects requests whose stage or run was
   * not found.
   */
  private openLines(
    lines: readonly Line[],
    fields: readonly (Field | AnabranchError)[],
    ahead: Ahead | undefined,
    repeated: ReadonlyMap<number, number>,
  ): OpenLine[] {
    return lines.flatMap(({ wanted, places }, i): OpenLine[] => {
      const field = fields[i]!;
      const open = places.filter((place) => !this.outcomes.has(place) && !repeated.has(place));
      if (!(field instanceof AnabranchError)) return open.length === 0 ? [] : [{ wanted, places: open, field, ahead }];
      for (const place of open) this.outcomes.set(place, { kind: 'refused', error: field });
      return [];
    });
  }

  /** Locks the next rollouts of a filter and returns those that can begin. */
  private async take({ wanted, places, field, ahead }: OpenLine): Promise<Taken[]> {
    const { queues } = field;
    const { labels, minPriority } = wanted;
    const limit = this.wantedOf(places);
    const taken: Taken[] = [];
    for (let round = 0; round < ROUNDS && taken.length < limit && queues.length > 0; round += 1) {
      const asked = round === 0 ? limit : Math.max(limit - taken.length, LOOK_AHEAD * 4 ** round);
      const known = round === 0 ? ahead : undefined;
      const looked = () => this.engine.lockQueued(this.tx, queues, { labels, minPriority, except: this.met }, asked);
      const rows = known?.rows ?? (await looked());
      if (rows.length === 0) break;
      for (const { key } of rows) this.met.push(key);
      taken.push(...(await this.begin(wanted.caller.namespace, rows, limit - taken.length, known?.places)));
      if (rows.length < asked) break;
    }
    return taken;
  }

  /**
   * Returns at most `most` locked rollouts with stage, run and start point. A rollout with an unusable start point is
   * recorded in `failing`. Rollouts beyond `most` stay PENDING.
   */
  private async begin(
    namespace: string,
    rows: readonly QueuedRow[],
    most: number,
    known: ClaimPlaces | undefined,
  ): Promise<Taken[]> {
    const { engine, tx } = this;
    const points = rows.flatMap((row) => readStart(row) ?? []);
    const [places, held] = await together([
      known ?? readPlaces(engine, tx, rows),
      holdStartPoints(engine, tx, namespace, points),
    ]);
    const taken: Taken[] = [];
    for (const row of rows) {
      const place = places.get(row.stage);
      const start = readStart(row);
      const point = start && held.get(nameOf(start));
      // The run was paused or is being deleted, or a deletion holds the start point: the rollout stays PENDING.
      if (place === undefined || point === 'busy') continue;
      if (point === 'gone') {
        this.failing.push({ row, why: `its start point, ${nameStart(row)}, was deleted` });
      } else if (point instanceof AnabranchError) {
        this.failing.push({ row, why: `${point.reason}: its start point is ${nameStart(row)}. ${point.message}` });
      } else if (taken.length < most) taken.push({ row, place, point });
    }
    return taken;
  }

  /**
   * Assigns rollouts in queue order to requests in order of arrival. A rollout that exceeds the size of an answer goes
   * to the next request or stays PENDING.
   */
  private async deal({ places }: OpenLine, taken: readonly Taken[], now: string): Promise<Granted[]> {
    if (taken.length > 1 && places.some((place) => this.wantedOf([place]) > 1)) await this.readAssignments(taken);
    let next = 0;
    return places.flatMap((place) => {
      const request = this.requests[place]!;
      const share = taken
        .slice(next, next + request.trajectories.length)
        .map((each, i): Granted => ({ ...each, at: place, request, ids: request.trajectories[i]! }));
      const fitting =
        share.length > 1 ? request.countFitting(previewClaims(share, this.assignments, now)) : share.length;
      next += fitting;
      return share.slice(0, fitting);
    });
  }

  /** The size of an answer depends on tasks and validators. */
  private async readAssignments(taken: readonly Taken[]): Promise<void> {
    const rows = taken.map(({ row }) => row);
    this.assignments = await readAssignments(this.engine, this.tx, rows, this.assignments);
  }

  /** Q3: fails rollouts that cannot begin at their start point. */
  private async failStartless(now: string): Promise<void> {
    if (this.failing.length === 0) return;
    const { engine, tx, failing } = this;
    const shown = await readShown(
      engine,
      tx,
      failing.map(({ row }) => row),
    );
    const moves = failing.map(({ row, why }) => {
      const caller = { namespace: row.namespace, actor: QUEUE };
      const said = { caller, row, head: undefined, message: why, metadataJson: '' };
      return { ...said, to: 'FAILED', shown: shown(row.key), ended: undefined } as const;
    });
    await moveMany(engine, tx, now, moves);
    for (const { row } of failing) this.changed.add(row.run);
  }

  /** Returns what is reported to requests that got no rollouts. */
  private async leftOf(
    lines: readonly OpenLine[],
    granted: readonly Granted[],
  ): Promise<ReadonlyMap<OpenLine, LeftOfLine>> {
    const { engine, tx } = this;
    const served = new Set(granted.map(({ at }) => at));
    const left = new Map<OpenLine, LeftOfLine>();
    for (const line of lines) {
      const { places, field, wanted } = line;
      if (places.every((place) => served.has(place))) continue;
      const [drained, next] = await together([
        isDrained(engine, tx, field, wanted),
        nextInMs(engine, tx, field, wanted),
      ]);
      left.set(line, { drained, nextInMs: next });
    }
    return left;
  }

  private answerFresh(
    lines: readonly OpenLine[],
    granted: readonly Granted[],
    claims: readonly Claim[],
    left: ReadonlyMap<OpenLine, LeftOfLine>,
  ): void {
    const of = new Map<number, Claim[]>();
    for (const [i, { at, row }] of granted.entries()) {
      const list = of.get(at);
      if (list === undefined) of.set(at, [claims[i]!]);
      else list.push(claims[i]!);
      this.changed.add(row.run);
    }
    for (const line of lines) {
      for (const place of line.places) {
        const own = of.get(place);
        const { drained = false, nextInMs: next } = (own === undefined ? left.get(line) : undefined) ?? {};
        this.outcomes.set(place, { kind: 'claimed', claims: own ?? [], drained, nextInMs: next });
      }
    }
  }
}

function nameStart({ start_step, start_trajectory }: QueuedRow): string {
  return `step ${start_step} of trajectory ${start_trajectory}`;
}
