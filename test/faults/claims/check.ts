/** Compares the stored rollouts with the reports of their workers. Pure. */
import { type Entry, type Journal, stepMark, type Token, tokenName } from './journal.ts';
import type { StoredAttempt, StoredRollout, StoredRollouts } from './stored.ts';

export interface Violation {
  readonly rule: string;
  readonly what: string;
}

export interface Made {
  readonly groups: number;
  readonly groupSize: number;
}

/** Returns all violations; `died` says whose process was killed. */
export function checkClaims(
  journal: Journal,
  stored: StoredRollouts,
  made: Made,
  died: (worker: string) => boolean,
): Violation[] {
  const claims = new Map<string, Extract<Entry, { what: 'claimed' }>>();
  const doubled = journal.of('claimed').filter((entry) => {
    const again = claims.has(tokenName(entry));
    claims.set(tokenName(entry), entry);
    return again;
  });
  const known = new Set(stored.rollouts.flatMap(({ id, attempts }) => attempts.map(({ number }) => `${id}/${number}`)));
  return [
    ...checkSiblings(stored, made),
    ...stored.rollouts.flatMap((rollout) => [...checkAttempts(rollout), ...checkHistory(rollout)]),
    ...stored.rollouts.flatMap((rollout) =>
      rollout.attempts.flatMap((attempt) => checkAttempt(rollout, attempt, journal, claims)),
    ),
    ...doubled.map((entry) =>
      wrong('a lease is granted once', `${tokenName(entry)} was granted to ${entry.worker} too`),
    ),
    ...[...claims.values()].flatMap((entry) => checkClaim(entry, journal, known, died)),
    ...(stored.strays === 0
      ? []
      : [wrong('every trajectory belongs to an attempt', `${stored.strays} belong to no attempt`)]),
  ];
}

function wrong(rule: string, what: string): Violation {
  return { rule, what };
}

/** Every sibling exists, once, and groups count their siblings correctly. */
function checkSiblings({ rollouts, groups }: StoredRollouts, { groups: count, groupSize }: Made): Violation[] {
  const rule = 'no sibling is lost';
  const places = new Set(rollouts.map(({ group, number }) => `${group}/${number}`));
  const wanted = Array.from({ length: count * groupSize }, (_, i) => `${Math.floor(i / groupSize)}/${i % groupSize}`);
  const found = wanted.filter((place) => !places.has(place)).map((place) => wrong(rule, `${place} is missing`));
  if (rollouts.length !== wanted.length) found.push(wrong(rule, `${rollouts.length} rollouts of ${wanted.length}`));
  for (const { number, ...counted } of groups) {
    const own = rollouts.filter(({ group }) => group === number);
    const turns = own.reduce((sum, { attempts }) => sum + (attempts.at(-1)?.marks.length ?? 1) - 1, 0);
    const is = { rollouts: own.length, terminalRollouts: own.length, terminalTurns: turns };
    if (JSON.stringify(counted) !== JSON.stringify(is))
      found.push(
        wrong('groups count', `group ${number} says ${JSON.stringify(counted)}, it has ${JSON.stringify(is)}`),
      );
  }
  return found;
}

/** Completed exactly once: by the last of its attempts, after all others failed. */
function checkAttempts({ id, status, attempt, attempts }: StoredRollout): Violation[] {
  const history = attempts.map(({ number, status: ended }) => `${number} ${ended}`).join(', ');
  const wanted = Array.from({ length: attempt }, (_, i) => `${i + 1} ${i + 1 === attempt ? 'COMPLETED' : 'FAILED'}`);
  if (status === 'COMPLETED' && history === wanted.join(', ')) return [];
  return [wrong('completed exactly once', `${id} is ${status} at attempt ${attempt}, with ${history}`)];
}

/** By its history, one attempt at a time: claimed only while PENDING, so that no two held it at the same time. */
function checkHistory({ id, attempt, history, ordinals }: StoredRollout): Violation[] {
  const text = history.join(' ');
  const form = /^PENDING( INITIALIZING( RUNNING)? PENDING)* INITIALIZING RUNNING COMPLETED$/u;
  const claims = history.filter((status) => status === 'INITIALIZING').length;
  const whole = ordinals.every((ordinal, i) => ordinal === i);
  if (form.test(text) && claims === attempt && whole) return [];
  return [
    wrong('no lease is held twice at a time', `${id} at attempt ${attempt} went ${text} (${ordinals.join(' ')})`),
  ];
}

/** A stored attempt against the reports: who claimed it, how it ended, and that its steps are its own. */
function checkAttempt(
  { id }: StoredRollout,
  { number, status, worker, trajectory, sealed, marks }: StoredAttempt,
  journal: Journal,
  claims: ReadonlyMap<string, Extract<Entry, { what: 'claimed' }>>,
): Violation[] {
  const token: Token = { rollout: id, attempt: number };
  const name = tokenName(token);
  const claim = claims.get(name);
  const found: Violation[] = [];
  if (claim === undefined && status !== 'FAILED')
    found.push(wrong('every attempt is accounted for', `${name} is ${status}, and nobody claimed it`));
  if (claim !== undefined && (claim.worker !== worker || claim.trajectory !== trajectory))
    found.push(wrong('every attempt is accounted for', `${name} is ${worker}'s, and was granted to ${claim.worker}`));
  const outcome = journal.outcomeOf(token);
  const fits = status === 'COMPLETED' ? [undefined, 'completed'] : [undefined, 'lost', 'released'];
  if (!fits.includes(outcome)) found.push(wrong('reports match the store', `${name} was ${outcome}, it is ${status}`));
  if (sealed !== status)
    found.push(wrong('sealed as the attempt ended', `${name} is ${status}, its trajectory ${sealed}`));
  if (marks.some((mark, i) => mark !== stepMark(token, i)))
    found.push(wrong('no turn is cross-filed', `${name} has ${marks.join(', ')}`));
  const completing = journal.of('completing').find((entry) => tokenName(entry) === name);
  if (status === 'COMPLETED' && completing?.steps !== marks.length)
    found.push(wrong('no turn is lost', `${name} took ${completing?.steps} steps, and has ${marks.length}`));
  return found;
}

/** A claim that a worker reported: it is stored, and the worker reported its end, unless it was killed. */
function checkClaim(
  entry: Extract<Entry, { what: 'claimed' }>,
  journal: Journal,
  known: ReadonlySet<string>,
  died: (worker: string) => boolean,
): Violation[] {
  const found: Violation[] = [];
  if (!known.has(tokenName(entry)))
    found.push(wrong('every attempt is accounted for', `${tokenName(entry)} was granted, and is not stored`));
  if (journal.outcomeOf(entry) === undefined && !died(entry.worker))
    found.push(
      wrong('every attempt is accounted for', `${entry.worker} never reported the end of ${tokenName(entry)}`),
    );
  return found;
}
