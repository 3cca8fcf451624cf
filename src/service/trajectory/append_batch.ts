import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type AppendEntry,
  AppendEntrySchema,
  type AppendResultSchema,
  type PartErrorSchema,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { PackedEntry } from '../../domain/step_codec/packed_step.ts';
import { commitEntries, type EntryOutcome, type FailedEntry, type NewEntry } from '../../stream/append/entries.ts';
import { fromInstant } from '../convert/values.ts';
import type { Call, Unary } from '../method.ts';
import { toAppendFrame } from './append.ts';
import { toCreation } from './creation.ts';
import { fromPacked, PackedRequest } from './packed_request.ts';

/** Writes entries, each with its own result (W14). */
export const appendBatch: Unary<typeof TrajectoryService.method.appendBatch> = async (request, call) => {
  const sent = (i: number) => (request instanceof PackedRequest ? request.message : request).entries[i]!;
  const given = request.entries.map((entry, i) => toEntryOrError(entry ?? sent(i), call));
  const outcomes = await commitEntries(call.app, call.caller, given, LIMITS.entryLockMs);
  for (const [i, entry] of given.entries()) {
    const outcome = outcomes[i];
    if ('trajectoryId' in entry && outcome?.kind === 'committed' && outcome.tookOver === true)
      call.tookOver(TrajectoryService.method.appendBatch, entry.trajectoryId);
  }
  const errors: PartErrors = new Map();
  return { results: outcomes.map((outcome, i) => toResult(outcome, () => sent(i), call, errors)) };
};

function toEntryOrError(entry: AppendEntry | PackedEntry, call: Call): NewEntry | FailedEntry {
  try {
    return '$typeName' in entry ? toEntry(entry, call) : fromPacked(entry);
  } catch (error) {
    return { kind: 'failed', error };
  }
}

/** Errors: INVALID_REQUEST, DIGEST_MISMATCH. */
function toEntry(entry: AppendEntry, { app, check }: Call): NewEntry {
  const { trajectoryId, uid, writerEpoch, writerId, takeOverEpoch, steps, tags, seal } = entry;
  if (writerId === '' && takeOverEpoch !== undefined) throw invalidField('take_over_epoch', 'requires writer_id');
  if (writerId !== '' && writerEpoch !== undefined) {
    throw invalidField('writer_epoch', 'must be unset with writer_id, which is granted a new epoch');
  }
  if (steps.length === 0 && seal === undefined && writerId === '' && entry.create === undefined) {
    throw invalidField('steps', 'must hold at least one step, unless the entry has seal, writer_id or create');
  }
  const message = { $typeName: 'anabranch.v1.AppendStepsRequest', steps, tags } as const;
  return {
    trajectoryId,
    uid: uid || undefined,
    writerEpoch,
    writer: writerId === '' ? undefined : { writerId, takeOverEpoch },
    create: toCreation(app, entry, ''),
    ...toAppendFrame(seal === undefined ? message : { ...message, seal }, { check }),
  };
}

/** Entries that fail with one error, as all do while the database is down, share it. */
type PartErrors = Map<unknown, MessageInitShape<typeof PartErrorSchema>>;

function toResult(
  outcome: EntryOutcome,
  sent: () => AppendEntry,
  call: Call,
  errors: PartErrors,
): MessageInitShape<typeof AppendResultSchema> {
  if (outcome.kind === 'committed') {
    const { nextStepNumber, commitTime, duplicates, uid, epoch } = outcome;
    const result = { nextStepNumber, commitTime: fromInstant(commitTime), duplicateSteps: BigInt(duplicates), uid };
    return epoch === undefined ? result : { ...result, epoch };
  }
  const error = errors.get(outcome.error) ?? call.errorOf(outcome.error, AppendEntrySchema, sent());
  errors.set(outcome.error, error);
  return { error };
}
