import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampDate } from '@bufbuild/protobuf/wkt';
import type { ConnectError } from '@connectrpc/connect';
import type { AppendEntrySchema, AppendResult } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { errorOfPart } from './errors.ts';

/** What to write to one trajectory, with the fields of AppendEntry. */
export type EntryInit = MessageInitShape<typeof AppendEntrySchema>;

/** The result of an entry: it is durable, or why it failed. */
export type EntryResult =
  | {
      readonly stored: true;
      readonly nextStepNumber: bigint;
      readonly commitTime: Date | undefined;
      readonly duplicateSteps: bigint;
      readonly uid: string;
      /** The epoch that the writer was granted. Undefined if the entry has no `writerId`. */
      readonly epoch: bigint | undefined;
    }
  | {
      readonly stored: false;
      /** As a call would throw it: for `reasonOf`, `errorMetadata` and `retryDelayMs`. */
      readonly error: ConnectError;
    };

/**
 * Writes at most `batchEntries` entries with one message of at most `messageBytes` (`client.limits`). Returns their
 * results in the order of the entries. After a failure of the call, send the same entries again: what is stored already
 * is a duplicate.
 *
 *     const results = await appendBatch(client, ids.map((trajectoryId, i) => ({ trajectoryId, steps: [steps[i]] })));
 *     for (const result of results) if (!result.stored) console.error(reasonOf(result.error));
 */
export async function appendBatch(
  client: { readonly trajectories: Pick<ClientCalls['trajectories'], 'appendBatch'> },
  entries: readonly EntryInit[],
  options: { readonly signal?: AbortSignal; readonly timeoutMs?: number } = {},
): Promise<EntryResult[]> {
  const { results } = await client.trajectories.appendBatch({ entries: [...entries] }, options);
  return results.map(toResult);
}

function toResult({ nextStepNumber, commitTime, duplicateSteps, uid, epoch, error }: AppendResult): EntryResult {
  if (error !== undefined) return { stored: false, error: errorOfPart(error) };
  const time = commitTime && timestampDate(commitTime);
  return { stored: true, nextStepNumber, commitTime: time, duplicateSteps, uid, epoch };
}
