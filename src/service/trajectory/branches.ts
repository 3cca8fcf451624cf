import {
  type BranchTrajectoriesRequest,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { derivedUuid } from '../../domain/ids.ts';
import { mergeJsonText, requireConfig } from '../../domain/json.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { NewEndBranch } from '../../store/contract/trajectory.ts';
import { required } from '../convert/values.ts';
import type { Unary } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';

const rpc = TrajectoryService.method.branchTrajectories;

/**
 * Trajectories that one statement reads, and one transaction branches: few, because their metadata can be large, and
 * SQLite runs a transaction without a pause.
 */
const GROUP = 16;

const MOST_LABELS = 64;
const MOST_METADATA_BYTES = 512 * 1024;

const OLDEST_FIRST = { by: 'CREATION', ascending: true } as const;

/** Branches the trajectories of a task (B7). */
export const branchTrajectories: Unary<typeof rpc> = async (request, { app, caller }) => {
  const { taskId, branchTaskId, metadataJson } = request;
  if (branchTaskId === taskId) {
    throw invalidField('branch_task_id', 'must differ from task_id, so that no branch is branched by the same call');
  }
  requireConfig(metadataJson, 'metadata_json');
  const key = required(idempotencyKeyOf(rpc, request), 'request_id');
  let count = 0;
  for (let after: bigint | undefined; ; ) {
    const page = { limit: GROUP, sort: OLDEST_FIRST, after };
    const sources = await app.store.listTrajectories(caller.namespace, { taskId }, page);
    const branches: NewEndBranch[] = [];
    for (const source of sources) {
      if (source.nextStepNumber === 0n) continue;
      const id = derivedUuid(tupleKey(key.requestId, key.requestDigest, source.id));
      branches.push({ id, uid: app.ids.uid(), source, taskId: branchTaskId, ...settingsOf(source, request) });
      // Merging large metadata takes milliseconds.
      if (metadataJson !== '') await new Promise((resolve) => setImmediate(resolve));
    }
    count += await app.store.branchTrajectories(caller, branches, key);
    after = sources.at(-1)?.ref.key;
    if (sources.length < GROUP) return { count: BigInt(count) };
  }
};

/** Errors: INVALID_REQUEST (the labels or the metadata are too large together with those of the source). */
function settingsOf(
  source: Trajectory,
  { name, labels: given, metadataJson: givenJson }: BranchTrajectoriesRequest,
): Pick<NewEndBranch, 'name' | 'labels' | 'metadataJson'> {
  const labels = new Map([...source.labels, ...Object.entries(given)]);
  if (labels.size > MOST_LABELS) throw tooLarge('labels', `${MOST_LABELS} labels`, source, labels.size);
  const metadataJson = givenJson === '' ? source.metadataJson : mergeJsonText(source.metadataJson, givenJson);
  const bytes = Buffer.byteLength(metadataJson);
  if (bytes > MOST_METADATA_BYTES) throw tooLarge('metadata_json', `${MOST_METADATA_BYTES} bytes`, source, bytes);
  return { name: name || source.name, labels, metadataJson };
}

function tooLarge(field: string, most: string, { id }: Trajectory, size: number) {
  return invalidField(field, `must have at most ${most} together with those of trajectory ${id}, got ${size}`);
}
