import type { Attempt, Rollout, Validation } from '../../domain/rollout.ts';
import type { Claim, RolloutRecord } from '../../store/contract/rollout.ts';
import { PAGE_BYTES } from '../page.ts';
import { utf8 } from '../run/row_bytes.ts';
import { trajectoryBytes } from '../trajectory/page.ts';
import { attemptBytes, resultBytes, rolloutBytes, taskBytes, validationBytes, validatorBytes } from './row_bytes.ts';

/** What of large rows fits into one answer (RD3): as much as possible, and in any case what one cannot do without. */

/** WHOLE: all of it; BASIC: no JSON (FM7); BARE: ids, numbers and times. */
export type Extent = 'WHOLE' | 'BASIC' | 'BARE';

/** Of ids, numbers and times. */
const BARE_BYTES = 1024;

/** How much of each claim is shown: what the earlier ones leave, though each at least BARE. */
export function fitClaims(claims: readonly Claim[]): Extent[] {
  let left = PAGE_BYTES - claims.reduce((bytes, claim) => bytes + bareClaimBytes(claim), 0);
  return claims.map((claim) => {
    for (const extent of ['WHOLE', 'BASIC'] as const) {
      const more = claimBytes(claim, extent) - bareClaimBytes(claim);
      if (more > left) continue;
      left -= Math.max(0, more);
      return extent;
    }
    return 'BARE';
  });
}

function bareClaimBytes({ rollout, trajectory }: Claim): number {
  return BARE_BYTES + 2 * utf8(rollout.taskId) + utf8(rollout.workerId) + utf8(trajectory.name);
}

function claimBytes({ rollout, task, validators, trajectory }: Claim, extent: 'WHOLE' | 'BASIC'): number {
  const view = extent === 'WHOLE' ? 'FULL' : 'BASIC';
  let bytes = 64 + rolloutBytes(rollout, view) + trajectoryBytes(trajectory, view);
  if (task !== undefined) bytes += taskBytes(task, view);
  if (extent === 'WHOLE') for (const validator of validators) bytes += validatorBytes(validator);
  return bytes;
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

/** The rollout, then its validations in the largest extent in which all fit, then its attempts, the newest first of all; what was found of them comes last. */
export function fitRecord(record: RolloutRecord, view: 'BASIC' | 'FULL'): FittingRecord {
  const { rollout, environmentIds } = record;
  const rest = PAGE_BYTES - rolloutBytes(rollout, view) - 48 * environmentIds.length;
  // Attempts are many only where they say little.
  const shown = newest(record.attempts, rest / 2);
  const room = rest - shown.reduce((bytes, attempt) => bytes + attemptBytes(attempt), 0);
  const asked: readonly Extent[] = view === 'FULL' ? ['WHOLE', 'BASIC', 'BARE'] : ['BASIC', 'BARE'];
  const validationExtent = asked.find((extent) => bytesOfAll(record.validations, extent) <= room) ?? 'BARE';
  const validations = record.validations.slice(0, countFitting(record.validations, room, validationExtent));
  const { attempts, bare } = fillAttempts(shown, room - bytesOfAll(validations, validationExtent), view);
  const whole =
    validationExtent === asked[0] &&
    validations.length === record.validations.length &&
    attempts.length === record.attempts.length &&
    !bare;
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

/** What was found of attempts, of the newest first; `bare`: of some it is left out. */
function fillAttempts(
  attempts: readonly Attempt[],
  room: number,
  view: 'BASIC' | 'FULL',
): { readonly attempts: readonly Attempt[]; readonly bare: boolean } {
  let left = room;
  let bare = false;
  const filled = attempts.toReversed().map((attempt): Attempt => {
    const bytes = foundBytes(attempt, view);
    if (bytes <= left) {
      left -= bytes;
      return attempt;
    }
    bare = true;
    return { ...attempt, result: undefined, validations: [] };
  });
  return { attempts: filled.reverse(), bare };
}

/** Of what was found of an attempt. */
function foundBytes({ result, validations }: Attempt, view: 'BASIC' | 'FULL'): number {
  return resultBytes(result, view) + bytesOfAll(validations, view === 'FULL' ? 'WHOLE' : 'BASIC');
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
