import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Attempt as WireAttempt } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { GetRolloutResponseSchema } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import { type Attempt, shownAttempt, type Validation } from '../../domain/rollout.ts';
import type { View } from '../../store/contract/request.ts';
import type { RolloutRecord } from '../../store/contract/rollout.ts';
import { countFitting, totalBytes } from '../answer/message.ts';
import {
  attemptBytes,
  fromAttempt,
  fromBareAttempt,
  fromRollout,
  fromValidation,
  rolloutBytes,
  validationBytes,
} from './messages.ts';

/** Maximum size of an environment id in the response. */
const ID_BYTES = 48;

/**
 * Returns a rollout with as much of its attempts as fits into one response (RD3). The shown attempt is the one whose
 * values the rollout has. At most half of the room is for the newest attempts without details. Next come the
 * validations of the shown attempt, in the largest form in which all fit. The rest is for details of attempts: results,
 * validations, metrics, timings and environments. Those of the shown attempt come last, because the rollout itself has
 * them.
 */
export function recordAnswer(
  { rollout: row, attempts: rows }: RolloutRecord,
  view: View,
): MessageInitShape<typeof GetRolloutResponseSchema> {
  const rollout = fromRollout(row, view);
  const shown = shownAttempt(row, rows);
  const environmentIds = [...(shown?.environmentIds ?? [])];
  const rest = ANSWER_BYTES - rolloutBytes(rollout) - ID_BYTES * environmentIds.length;
  const newest = countFitting(rows.map(fromBareAttempt).toReversed(), attemptBytes, rest / 2);
  const kept = rows.slice(rows.length - newest);
  const room = rest - totalBytes(kept.map(fromBareAttempt), attemptBytes);
  const forms = formsOf(row.id, shown?.validations ?? [], view);
  const form = forms.find((validations) => totalBytes(validations, validationBytes) <= room) ?? forms.at(-1) ?? [];
  const validations = form.slice(0, countFitting(form, validationBytes, room));
  const filled = fillAttempts(row.id, kept, view, room - totalBytes(validations, validationBytes), shown);
  const isWhole = form === forms[0] && validations.length === form.length && filled.size === rows.length;
  const attempts = kept.map((attempt) => filled.get(attempt) ?? fromBareAttempt(attempt));
  return { rollout, attempts, validations, environmentIds, truncated: !isWhole };
}

/** Returns the validations in all forms that the view allows, the largest form first. */
function formsOf(rolloutId: string, validations: readonly Validation[], view: View) {
  const forms = ['FULL', 'BASIC', 'BARE'] as const;
  const allowed = view === 'FULL' ? forms : forms.slice(1);
  return allowed.map((form) => validations.map((each) => fromValidation(rolloutId, each, form)));
}

/** Returns the attempts that fit with their details. Tries the newest first, and the shown one last. */
function fillAttempts(
  rolloutId: string,
  attempts: readonly Attempt[],
  view: View,
  room: number,
  shown: Attempt | undefined,
): ReadonlyMap<Attempt, WireAttempt> {
  let left = room;
  const filled = new Map<Attempt, WireAttempt>();
  const others = attempts.toReversed().filter((attempt) => attempt !== shown);
  const last = attempts.filter((attempt) => attempt === shown);
  for (const attempt of [...others, ...last]) {
    const wire = fromAttempt(rolloutId, attempt, view);
    const bytes = attemptBytes(wire) - attemptBytes(fromBareAttempt(attempt));
    if (bytes > left) continue;
    left -= bytes;
    filled.set(attempt, wire);
  }
  return filled;
}
