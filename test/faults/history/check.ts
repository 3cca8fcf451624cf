/**
 * Compares a history with the contents of the store at its end. Pure: tested with planted violations of each rule.
 *
 * - C1 everything acked is stored, as it was sent, once: steps, branches, seals.
 * - C2 numbers run without gap and without duplicate up to the end of the trajectory.
 * - C3 every stored step was sent, for that place, and not refused.
 * - C4 epochs never decrease along the numbers. No step of an older epoch follows a newer grant or started after it.
 *   Each step has an epoch of the writer that sent it. No epoch is granted twice.
 * - C5 a read returns all that was acked before it started, in order, and nothing that was not sent before it ended
 *   or that is not stored.
 * - C6 a follower gets each step once, in order, without gap, and only stored steps. Its markers match what it got.
 *   A follower that stays to the end gets all steps.
 * - C7 the prefix of a branch equals that of its parent.
 * - C8 the API returns what the tables contain, and the bytes of every checkpoint's state.
 */
import type { Append, Follow, Read, Recorded, SeenStep, Tick } from './history.ts';
import type { Stored, StoredTrajectory } from './stored.ts';

export type Rule = 'C1' | 'C2' | 'C3' | 'C4' | 'C5' | 'C6' | 'C7' | 'C8';

export interface Violation {
  readonly rule: Rule;
  readonly trajectory: string;
  readonly what: string;
}

export function checkHistory(history: Recorded, stored: Stored): Violation[] {
  const sent = new Map(history.appends.map((append) => [append.content, append]));
  const violations: Violation[] = [];
  const tell = (rule: Rule, trajectory: string, what: string) => violations.push({ rule, trajectory, what });
  const context: Context = { history, stored, sent, tell };
  checkAcked(context);
  for (const trajectory of stored.values()) {
    checkNumbers(context, trajectory);
    checkOrigin(context, trajectory);
    checkPrefix(context, trajectory);
    checkTables(context, trajectory);
  }
  checkGrants(context);
  checkReads(context);
  for (const follow of history.follows) checkFollow(context, follow);
  return violations;
}

/** Sent without an answer, and stored all the same: without any, the faults had no effect. */
export function unknownButStored(history: Recorded, stored: Stored): number {
  const there = new Set([...stored.values()].flatMap(({ rows }) => rows.map(({ content }) => content)));
  return history.appends.filter(({ outcome, content }) => outcome === 'unknown' && there.has(content)).length;
}

interface Context {
  readonly history: Recorded;
  readonly stored: Stored;
  /** By content, which is unique to each step. */
  readonly sent: ReadonlyMap<string, Append>;
  readonly tell: (rule: Rule, trajectory: string, what: string) => void;
}

function checkAcked({ history, stored, tell }: Context): void {
  const places = new Map<string, string[]>();
  const rows = new Map<string, ReadonlyMap<bigint, string>>();
  for (const { id, rows: own } of stored.values()) {
    rows.set(id, new Map(own.map(({ number, content }) => [number, content])));
    for (const { number, content } of own) places.set(content, [...(places.get(content) ?? []), `${id}/${number}`]);
  }
  for (const { trajectory, number, content, outcome } of history.appends) {
    const found = rows.get(trajectory)?.get(number);
    if (outcome !== 'acked' || found === content) continue;
    tell('C1', trajectory, `acked step ${number} ${content} is lost: there is ${found ?? 'nothing'} in its place`);
  }
  for (const [content, at] of places)
    if (at.length > 1) tell('C1', at[0]!, `${content} is stored ${at.length} times: ${at}`);
  for (const { branch, parent, point, outcome } of history.branchings) {
    const found = stored.get(branch);
    if (outcome !== 'acked' || (found?.parent === parent && found.branchPoint === point)) continue;
    tell('C1', branch, `the acked branch of ${parent} at ${point} is lost`);
  }
  for (const { trajectory, outcome } of history.sealings) {
    if (outcome === 'acked' && stored.get(trajectory)?.sealed !== true)
      tell('C1', trajectory, 'the acked seal is lost');
  }
}

function checkNumbers({ tell }: Context, { id, branchPoint, end, rows, read }: StoredTrajectory): void {
  const begin = branchPoint === undefined ? 0n : branchPoint + 1n;
  for (const [name, steps, from] of [
    ['rows', rows, begin],
    ['read', read, 0n],
  ] as const) {
    const broken = firstBreak(steps, from);
    if (broken !== undefined) tell('C2', id, `${name}: step ${broken.got} stands where ${broken.due} is due`);
    const last = from + BigInt(steps.length);
    if (last !== end) tell('C2', id, `${name}: ${steps.length} steps from ${from} on, but the end is ${end}`);
  }
}

function checkOrigin({ sent, tell }: Context, { id, rows }: StoredTrajectory): void {
  for (const { number, content } of rows) {
    const append = sent.get(content);
    if (append === undefined) tell('C3', id, `step ${number} ${content} was never sent`);
    else if (append.trajectory !== id || append.number !== number)
      tell('C3', id, `step ${number} ${content} was sent as ${append.trajectory}/${append.number}`);
    else if (append.outcome === 'refused') tell('C3', id, `step ${number} ${content} was refused, but is stored`);
  }
}

function checkGrants(context: Context): void {
  const { history, stored, tell } = context;
  for (const [id, grants] of Map.groupBy(history.grants, ({ trajectory }) => trajectory)) {
    const ordered = [...grants].sort((a, b) => Number(a.epoch - b.epoch));
    for (const [i, grant] of ordered.entries()) {
      if (grant.epoch === ordered[i - 1]?.epoch) tell('C4', id, `epoch ${grant.epoch} was granted twice`);
      if (grant.next < (ordered[i - 1]?.next ?? 0n)) tell('C4', id, `the end fell before epoch ${grant.epoch}`);
    }
    const trajectory = stored.get(id);
    if (trajectory !== undefined) checkEpochs(context, trajectory, ordered);
  }
}

function checkEpochs({ sent, tell }: Context, { id, rows }: StoredTrajectory, grants: Recorded['grants']): void {
  const writers = new Map(grants.map(({ epoch, writer }) => [epoch, writer]));
  let previous = 0n;
  let passed = 0;
  // The newest epoch known to be granted at or below the number of a step.
  for (const { number, content, epoch } of rows) {
    while (passed < grants.length && grants[passed]!.next <= number) passed += 1;
    const newest = grants[passed - 1]?.epoch ?? 0n;
    if (epoch < previous) tell('C4', id, `step ${number} has epoch ${epoch} behind one of epoch ${previous}`);
    if (epoch < newest) tell('C4', id, `step ${number} of epoch ${epoch} lies behind the grant of epoch ${newest}`);
    if (passed < grants.length && epoch >= grants[passed]!.epoch)
      tell('C4', id, `step ${number} of epoch ${epoch} is below the end in its grant`);
    const append = sent.get(content);
    if (append !== undefined && writers.get(epoch) !== append.writer)
      tell('C4', id, `step ${number} is stored under epoch ${epoch}, which was not granted to its writer`);
    previous = epoch;
  }
  checkBegins(rows, grants, sent, (what) => tell('C4', id, what));
}

/**
 * A writer that was fenced before it started to send a step must not have stored it, even if the newer writer has
 * stored nothing yet.
 */
function checkBegins(
  rows: StoredTrajectory['rows'],
  grants: Recorded['grants'],
  sent: Context['sent'],
  tell: (what: string) => void,
): void {
  // When any epoch newer than this one had first been granted.
  const fencedAt = new Map<bigint, Tick>();
  let earliest = Number.POSITIVE_INFINITY;
  for (const { epoch, tick } of grants.toReversed()) {
    fencedAt.set(epoch, earliest);
    earliest = Math.min(earliest, tick);
  }
  for (const { number, content, epoch } of rows) {
    const begin = sent.get(content)?.begin ?? 0;
    if (begin > (fencedAt.get(epoch) ?? Number.POSITIVE_INFINITY))
      tell(`step ${number} of epoch ${epoch} began after a newer one was granted`);
  }
}

function checkReads(context: Context): void {
  const acks = ackedEnds(context.history);
  const finals = finalContents(context.stored);
  for (const read of context.history.reads) checkRead(context, read, acks, finals);
}

function checkRead(
  { sent, tell }: Context,
  { reader, trajectory, from, begin, end, got }: Read,
  acks: ReadonlyMap<string, AckedEnds>,
  finals: Finals,
): void {
  const say = (what: string) => tell('C5', trajectory, `${reader}, reading from ${from}: ${what}`);
  const broken = firstBreak(got, from);
  if (broken !== undefined) say(`step ${broken.got} stands where ${broken.due} is due`);
  const acked = acks.get(trajectory)?.at(begin) ?? 0n;
  const to = from + BigInt(got.length);
  if (to < acked) say(`ended at ${to}, but everything below ${acked} was acked before`);
  for (const step of got) {
    if ((sent.get(step.content)?.begin ?? 0) > end) say(`showed step ${step.number} before it was sent`);
    if (!isFinal(finals, trajectory, step))
      say(`showed step ${step.number} ${step.content}, which is not what is stored`);
  }
}

function checkFollow({ stored, sent, tell }: Context, follow: Follow): void {
  const { trajectory, from, got, marks } = follow;
  const say = (what: string) => tell('C6', trajectory, `${follow.follower}, following from ${from}: ${what}`);
  const broken = firstBreak(got, from);
  if (broken !== undefined) say(`got step ${broken.got}, expected ${broken.due}`);
  const finals = finalContents(stored, trajectory);
  for (const step of got) {
    if ((sent.get(step.content)?.begin ?? 0) > step.tick) say(`got step ${step.number} before it was sent`);
    if (!isFinal(finals, trajectory, step)) say(`got step ${step.number} ${step.content}, which is not what is stored`);
  }
  for (const { next, delivered } of marks) {
    const due = from + BigInt(delivered);
    if (next !== due) say(`got next_step_number ${next}, expected ${due}`);
  }
  const end = stored.get(trajectory)?.end ?? 0n;
  const reached = from + BigInt(got.length);
  if (follow.stayed && reached !== end) say(`stayed to the end ${end}, but got nothing from ${reached} on`);
}

function checkPrefix({ stored, tell }: Context, { id, parent, branchPoint, read }: StoredTrajectory): void {
  if (parent === undefined || branchPoint === undefined) return;
  const source = stored.get(parent)?.read ?? [];
  for (let i = 0; i <= Number(branchPoint); i += 1) {
    const [ours, theirs] = [read[i], source[i]];
    if (ours !== undefined && ours.content === theirs?.content && ours.owner === theirs.owner) continue;
    tell('C7', id, `step ${i} is ${ours?.content}, but ${theirs?.content} in its parent ${parent}`);
    return;
  }
}

function checkTables({ tell }: Context, { id, rows, read, states }: StoredTrajectory): void {
  for (const { number, digest } of read) {
    if (digest !== undefined && states.get(number) !== digest)
      tell('C8', id, `the state of step ${number} is ${states.get(number) ?? 'missing'}, not ${digest}`);
  }
  const own = read.filter(({ owner }) => owner === id);
  if (own.length !== rows.length) tell('C8', id, `the API tells ${own.length} own steps, the table ${rows.length}`);
  for (const [i, row] of rows.entries()) {
    const told = own[i];
    if (told === undefined || (told.content === row.content && told.epoch === row.epoch)) continue;
    tell(
      'C8',
      id,
      `step ${row.number}: the API returns ${told.content} of epoch ${told.epoch}, the table contains ${row.content}`,
    );
  }
}

function firstBreak(steps: readonly { number: bigint }[], from: bigint): { due: bigint; got: bigint } | undefined {
  const at = steps.findIndex(({ number }, i) => number !== from + BigInt(i));
  return at < 0 ? undefined : { due: from + BigInt(at), got: steps[at]!.number };
}

type Finals = ReadonlyMap<string, ReadonlyMap<bigint, string>>;

function finalContents(stored: Stored, only?: string): Finals {
  const wanted = [...stored.values()].filter(({ id }) => only === undefined || id === only);
  return new Map(wanted.map(({ id, read }) => [id, new Map(read.map(({ number, content }) => [number, content]))]));
}

function isFinal(finals: Finals, trajectory: string, { number, content }: SeenStep): boolean {
  return finals.get(trajectory)?.get(number) === content;
}

/** The acked end of a trajectory at a tick. */
class AckedEnds {
  readonly #ticks: Tick[] = [];
  readonly #ends: bigint[] = [];

  /** In order of tick. */
  add(tick: Tick, end: bigint): void {
    const last = this.#ends.at(-1) ?? 0n;
    this.#ticks.push(tick);
    this.#ends.push(end > last ? end : last);
  }

  at(tick: Tick): bigint {
    let [low, high] = [0, this.#ticks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ticks[middle]! < tick) low = middle + 1;
      else high = middle;
    }
    return this.#ends[low - 1] ?? 0n;
  }
}

function ackedEnds({ appends }: Recorded): Map<string, AckedEnds> {
  const acked = appends.filter(({ outcome, end }) => outcome === 'acked' && end !== undefined);
  acked.sort((a, b) => a.end! - b.end!);
  const ends = new Map<string, AckedEnds>();
  for (const { trajectory, number, end } of acked) {
    const of = ends.get(trajectory) ?? new AckedEnds();
    of.add(end!, number + 1n);
    ends.set(trajectory, of);
  }
  return ends;
}
