import { AnabranchError } from '../../domain/errors.ts';
import type { Claim, ClaimOutcome, ClaimRequest } from '../contract/rollout.ts';
import { readAttemptEnds } from './attempts.ts';
import { type ClaimKey, findKeptClaims, keepClaims } from './claim_keys.ts';
import { type Field, isDrained, type Line, linesOf, readField } from './claim_lines.ts';
import { type Granted, makeClaims } from './claim_making.ts';
import { type ClaimPlace, readOverridden, readPlaces, type Taken } from './claim_places.ts';
import { readClaims } from './claim_reading.ts';
import { assignedTo, readAssignments } from './claim_tasks.ts';
import type { Engine, QueuedRow, Tx } from './engine.ts';
import { moveMany } from './requeueing.ts';
import { readStart } from './rollout_rows.ts';
import { holdStartPoints, nameOf } from './start_points.ts';
import { together } from './together.ts';
import { againWhenRaced } from './unique_violation.ts';

/** One transaction for many: statements are sent for lines of requests, not for each. Where a racer came with the same key, it is run again. */
export async function claimRollouts(engine: Engine, requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
  if (requests.length === 0) return [];
  const { outcomes, changed } = await againWhenRaced(() =>
    engine.write((tx) => new Claiming(engine, tx, requests).claim()),
  );
  engine.announce(changed);
  return outcomes;
}

/** Who fails rollouts whose start point is gone, in their history. */
const QUEUE = 'anabranch';

/** So often a line looks for more in place of what could not be begun, each time further ahead; the rest is left to the next claim. */
const ROUNDS = 6;
const LOOK_AHEAD = 16;

/** A line with the field it looks in. */
interface OpenLine extends Line {
  readonly field: Field;
}

class Claiming {
  private readonly engine: Engine;
  private readonly tx: Tx;
  private readonly requests: readonly ClaimRequest[];
  private readonly outcomes = new Map<number, ClaimOutcome>();
  /** Rollouts that this transaction has locked: no line meets them again. */
  private readonly met: bigint[] = [];
  private readonly gone: QueuedRow[] = [];
  private readonly changed = new Set<bigint>();

  constructor(engine: Engine, tx: Tx, requests: readonly ClaimRequest[]) {
    this.engine = engine;
    this.tx = tx;
    this.requests = requests;
  }

  async claim(): Promise<{ readonly outcomes: ClaimOutcome[]; readonly changed: readonly bigint[] }> {
    const { engine, tx, requests } = this;
    const lines = linesOf(requests);
    const [{ now, mark }, kept, fields] = await together([
      engine.beginClaim(tx),
      findKeptClaims(tx, requests),
      together(lines.map((line) => this.fieldOf(line))),
    ]);
    const repeated = await this.answerKept(kept);
    const open = this.openLines(lines, fields, repeated);
    const granted: Granted[] = [];
    for (const line of open) granted.push(...this.deal(line, await this.take(line)));
    const claims = await makeClaims(engine, tx, now, mark, granted);
    await this.failGone(now);
    await this.answerFresh(open, granted, claims);
    await keepClaims(engine, tx, now, requests, granted);
    // The same request twice at once is one.
    for (const [place, first] of repeated) this.outcomes.set(place, this.outcomeAt(first));
    return { outcomes: requests.map((_request, place) => this.outcomeAt(place)), changed: [...this.changed] };
  }

  private outcomeAt(place: number): ClaimOutcome {
    const outcome = this.outcomes.get(place);
    if (outcome === undefined) throw new Error('a request was not answered');
    return outcome;
  }

  /** ID1, Q2: a key that came before is answered with what still lives of it. Gives those of the others that repeat one of them, and which. */
  private async answerKept(kept: ReadonlyMap<string, ClaimKey>): Promise<Map<number, number>> {
    const repeated = new Map<number, number>();
    const first = new Map<string, number>();
    for (const [place, { caller, key }] of this.requests.entries()) {
      const name = key === undefined ? undefined : `${caller.namespace}/${key.rpc}/${key.requestId}`;
      const before = name === undefined ? undefined : (kept.get(name) ?? this.requests[first.get(name) ?? -1]?.key);
      if (name === undefined || key === undefined) continue;
      if (before === undefined) first.set(name, place);
      else if (before.requestDigest !== key.requestDigest) {
        this.outcomes.set(place, { kind: 'refused', error: requestIdReused(key.requestId) });
      } else if ('claims' in before) {
        const claims = await readClaims(this.engine, this.tx, caller.namespace, before.claims);
        this.outcomes.set(place, { kind: 'claimed', claims, drained: false });
      } else repeated.set(place, first.get(name) ?? place);
    }
    return repeated;
  }

  /** An error is what the line is refused with. */
  private async fieldOf({ wanted }: Line): Promise<Field | AnabranchError> {
    try {
      return await readField(this.engine, this.tx, wanted);
    } catch (error) {
      if (!(error instanceof AnabranchError) || error.reason === 'DATABASE_UNAVAILABLE') throw error;
      return error;
    }
  }

  /** What is left to be served of each line, and where it looks. */
  private openLines(
    lines: readonly Line[],
    fields: readonly (Field | AnabranchError)[],
    repeated: ReadonlyMap<number, number>,
  ): OpenLine[] {
    return lines.flatMap(({ wanted, places }, i): OpenLine[] => {
      const field = fields[i]!;
      const open = places.filter((place) => !this.outcomes.has(place) && !repeated.has(place));
      if (!(field instanceof AnabranchError)) return open.length === 0 ? [] : [{ wanted, places: open, field }];
      for (const place of open) this.outcomes.set(place, { kind: 'refused', error: field });
      return [];
    });
  }

  /** Locks what is next for a line, and sees what of it can be begun. */
  private async take({ wanted, places, field }: OpenLine): Promise<Taken[]> {
    const { queues } = field;
    const limit = places.reduce((sum, place) => sum + (this.requests[place]?.trajectories.length ?? 0), 0);
    const taken: Taken[] = [];
    for (let round = 0; round < ROUNDS && taken.length < limit && queues.length > 0; round += 1) {
      const { labels, minPriority } = wanted;
      const asked = round === 0 ? limit : Math.max(limit - taken.length, LOOK_AHEAD * 4 ** round);
      const rows = await this.engine.lockQueued(this.tx, queues, { labels, minPriority, except: this.met }, asked);
      if (rows.length === 0) break;
      for (const { key } of rows) this.met.push(key);
      taken.push(...(await this.begin(wanted.caller.namespace, rows, limit - taken.length)));
      if (rows.length < asked) break;
    }
    return taken;
  }

  /**
   * Under the rollouts' locks: at most so many, with where they are, as it is now, where they begin, and what their claims tell. One whose start point is
   * gone is to be FAILED; what was locked ahead stays PENDING.
   */
  private async begin(namespace: string, rows: readonly QueuedRow[], most: number): Promise<Taken[]> {
    const { engine, tx } = this;
    const points = rows.flatMap((row) => readStart(row) ?? []);
    const [places, held, assignments, overridden, keys] = await together([
      readPlaces(engine, tx, rows),
      holdStartPoints(engine, tx, namespace, points),
      readAssignments(engine, tx, rows),
      readOverridden(engine, tx, rows),
      engine.nextKeys(tx, 'trajectories', Math.min(rows.length, most)),
    ]);
    const taken: Taken[] = [];
    for (const row of rows) {
      const place: ClaimPlace | undefined = places.get(row.key);
      const start = readStart(row);
      const point = start && held.get(nameOf(start));
      const trajectory = keys[taken.length];
      // Its run was paused, or is being deleted; or a deletion holds its start point: it stays where it is.
      if (place === undefined || point === 'busy') continue;
      if (point === 'gone') this.gone.push(row);
      else if (trajectory !== undefined) {
        const before = overridden.get(row.key);
        taken.push({ row, place, point, trajectory, assigned: assignedTo(row, assignments), before });
      }
    }
    return taken;
  }

  /** In the order of the queue, to requests in the order of their coming. */
  private deal({ places }: OpenLine, taken: readonly Taken[]): Granted[] {
    let next = 0;
    return places.flatMap((place) => {
      const request = this.requests[place]!;
      const share = taken.slice(next, next + request.trajectories.length);
      next += share.length;
      return share.map((each, i) => ({ ...each, at: place, request, ids: request.trajectories[i]! }));
    });
  }

  /** Q3: nobody can begin there any more. */
  private async failGone(now: string): Promise<void> {
    if (this.gone.length === 0) return;
    const { engine, tx, gone } = this;
    const ends = await readAttemptEnds(
      engine,
      tx,
      gone.map(({ key }) => key),
    );
    const moves = gone.map((row) => {
      const caller = { namespace: row.namespace, actor: QUEUE };
      const message = `its start point, step ${row.start_step} of trajectory ${row.start_trajectory}, was deleted`;
      const said = { caller, row, head: undefined, message, metadataJson: '' };
      return { ...said, to: 'FAILED', end: ends.get(row.key), unjudged: false } as const;
    });
    await moveMany(engine, tx, now, moves);
    for (const { run } of gone) this.changed.add(run);
  }

  private async answerFresh(
    lines: readonly OpenLine[],
    granted: readonly Granted[],
    claims: readonly Claim[],
  ): Promise<void> {
    const of = new Map<number, Claim[]>();
    for (const [i, { at, row }] of granted.entries()) {
      const list = of.get(at);
      if (list === undefined) of.set(at, [claims[i]!]);
      else list.push(claims[i]!);
      this.changed.add(row.run);
    }
    for (const { wanted, places, field } of lines) {
      const empty = places.some((place) => !of.has(place));
      const drained = empty && (await isDrained(this.engine, this.tx, field, wanted));
      for (const place of places) {
        const own = of.get(place);
        this.outcomes.set(place, { kind: 'claimed', claims: own ?? [], drained: own === undefined && drained });
      }
    }
  }
}

function requestIdReused(requestId: string): AnabranchError {
  return new AnabranchError(
    'REQUEST_ID_REUSED',
    `request_id "${requestId}" was used for another request of this RPC: use a new one for each claim.`,
    { metadata: { request_id: requestId } },
  );
}
