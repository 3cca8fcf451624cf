import { type Attempt, type Rollout, shownAttempt, type Validation } from '../../domain/rollout.ts';
import type { TimeSpan } from '../../domain/run.ts';
import type { Claim, RolloutRecord } from '../../store/contract/rollout.ts';
import { PAGE_BYTES } from '../page.ts';
import { utf8 } from '../run/row_bytes.ts';
import { trajectoryBytes } from '../trajectory/page.ts';
import {
  attemptBytes,
  attemptFoundBytes,
  rolloutBytes,
  taskBytes,
  validationBytes,
  validatorBytes,
} from './row_bytes.ts';

/** What of large rows fits into one answer (RD3): as much as possible, and in any case what one cannot do without. */

/** WHOLE: all of it; BASIC: no JSON (FM7); BARE: ids, numbers and times. */
type Extent = 'WHOLE' | 'BASIC' | 'BARE';

/** Of ids, numbers and times. */
const BARE_BYTES = 1024;

/** WHOLE: all of a claim; INPUT: no validators, and of the JSON only `input_json`; BARE: ids, numbers and times. */
export type ClaimExtent = 'WHOLE' | 'INPUT' | 'BARE';

/** Q2: returns how many claims, from the first, fit whole into one answer. At least one. */
export function countFittingClaims(claims: readonly Claim[]): number {
  let bytes = 0;
  const cut = claims.findIndex((claim) => {
    bytes += claimBytes(claim, 'WHOLE');
    return bytes > PAGE_BYTES;
  });
  return cut === -1 ? claims.length : Math.max(1, cut);
}

/**
 * How much of each claim is shown: all of it, unless it has very many validators, or rollouts and tasks have grown since the claims were granted. Then all
 * claims keep their `input_json` if there is room, and the first ones are shown whole.
 */
export function fitClaims(claims: readonly Claim[]): ClaimExtent[] {
  const bytesOfEach = (extent: ClaimExtent) => claims.reduce((bytes, claim) => bytes + claimBytes(claim, extent), 0);
  const least = bytesOfEach('INPUT') <= PAGE_BYTES ? 'INPUT' : 'BARE';
  let left = PAGE_BYTES - bytesOfEach(least);
  return claims.map((claim) => {
    const more = claimBytes(claim, 'WHOLE') - claimBytes(claim, least);
    if (more > left) return least;
    left -= more;
    return 'WHOLE';
  });
}

/** No fewer bytes than the claim takes. */
function claimBytes({ rollout, task, validators, trajectory }: Claim, extent: ClaimExtent): number {
  const bare = BARE_BYTES + 2 * utf8(rollout.taskId) + utf8(rollout.workerId) + utf8(trajectory.name);
  if (extent === 'BARE') return bare;
  const input = utf8(rollout.inputJson) + (task === undefined ? 0 : utf8(task.inputJson) + taskBytes(task, 'BASIC'));
  const basic = bare + rolloutBytes(rollout, 'BASIC') + trajectoryBytes(trajectory, 'BASIC') + input;
  if (extent === 'INPUT') return basic;
  const judged = validators.reduce((bytes, validator) => bytes + validatorBytes(validator), 0);
  const metadata = utf8(rollout.metadataJson) + utf8(trajectory.metadataJson) + utf8(task?.metadataJson ?? '');
  return basic + judged + metadata;
}

export interface FittingRecord {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
  readonly validations: readonly Validation[];
  readonly environmentIds: readonly string[];
  readonly validationExtent: Extent;
  /** Something is left out that was asked for. */
  readonly truncated: boolean;
}

/**
 * The rollout; then the validations of the attempt that it shows, in the largest extent in which all fit; then its attempts, the newest first. What was
 * found of attempts comes last, and of these the attempt that the rollout shows, since its findings are there already.
 */
export function fitRecord({ rollout, attempts: all }: RolloutRecord, view: 'BASIC' | 'FULL'): FittingRecord {
  const shown = shownAttempt(rollout, all);
  const { validations: said = [], environmentIds = [] } = shown ?? {};
  const rest = PAGE_BYTES - rolloutBytes(rollout, view) - 48 * environmentIds.length;
  // Attempts are many only where they say little.
  const kept = newest(all, rest / 2);
  const room = rest - kept.reduce((bytes, attempt) => bytes + attemptBytes(attempt), 0);
  const asked: readonly Extent[] = view === 'FULL' ? ['WHOLE', 'BASIC', 'BARE'] : ['BASIC', 'BARE'];
  const validationExtent = asked.find((extent) => bytesOfAll(said, extent) <= room) ?? 'BARE';
  const validations = said.slice(0, countFitting(said, room, validationExtent));
  const left = room - bytesOfAll(validations, validationExtent);
  const { attempts, bare } = fillAttempts(kept, left, view, shown);
  const whole =
    validationExtent === asked[0] && validations.length === said.length && attempts.length === all.length && !bare;
  return { rollout, attempts, validations, environmentIds, validationExtent, truncated: !whole };
}

function newest(attempts: readonly Attempt[], room: number): readonly Attempt[] {
  let bytes = 0;
  let first = attempts.length;
  while (first > 0) {
    bytes += attemptBytes(attempts[first - 1]!);
    if (bytes > room) break;
    first -= 1;
  }
  return attempts.slice(first);
}

/** What was found of attempts, of the newest first and of the `shown` one last; `bare`: of some it is left out. */
function fillAttempts(
  attempts: readonly Attempt[],
  room: number,
  view: 'BASIC' | 'FULL',
  shown: Attempt | undefined,
): { readonly attempts: readonly Attempt[]; readonly bare: boolean } {
  let left = room;
  const bare = new Set<Attempt>();
  const others = attempts.toReversed().filter((attempt) => attempt !== shown);
  const last = shown !== undefined && attempts.includes(shown) ? [shown] : [];
  for (const attempt of [...others, ...last]) {
    const bytes = foundBytes(attempt, view);
    if (bytes <= left) left -= bytes;
    else bare.add(attempt);
  }
  const filled = attempts.map((attempt) => (bare.has(attempt) ? { ...attempt, ...NOTHING_FOUND } : attempt));
  return { attempts: filled, bare: bare.size > 0 };
}

const NOTHING_FOUND = Object.freeze({
  result: undefined,
  validations: [],
  override: undefined,
  metrics: new Map<string, number>(),
  timings: new Map<string, TimeSpan>(),
  environmentIds: [],
});

/** Of what was found of an attempt. */
function foundBytes(attempt: Attempt, view: 'BASIC' | 'FULL'): number {
  return attemptFoundBytes(attempt, view) + bytesOfAll(attempt.validations, view === 'FULL' ? 'WHOLE' : 'BASIC');
}

function countFitting(validations: readonly Validation[], room: number, extent: Extent): number {
  let bytes = 0;
  const cut = validations.findIndex((validation) => {
    bytes += extentBytes(validation, extent);
    return bytes > room;
  });
  return cut === -1 ? validations.length : cut;
}

function bytesOfAll(validations: readonly Validation[], extent: Extent): number {
  return validations.reduce((bytes, validation) => bytes + extentBytes(validation, extent), 0);
}

function extentBytes(validation: Validation, extent: Extent): number {
  if (extent === 'WHOLE') return validationBytes(validation);
  const basic = { ...validation, detailsJson: '' };
  return validationBytes(extent === 'BASIC' ? basic : { ...basic, query: '', expectedResult: '', actualResult: '' });
}
