import type { MessageInitShape } from '@bufbuild/protobuf';
import type { SearchHit, SearchStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

type Request = MessageInitShape<typeof SearchStepsRequestSchema>;

/** Options of searchSteps(): the text, and at most one place to search in. Without a place, everything is searched. */
export interface SearchOptions
  extends Pick<Request, 'trajectoryId' | 'treeId' | 'runId' | 'experimentId' | 'taskId'>,
    ResumeOptions {
  /** The text to find, 1 to 256 bytes. Capitals match small letters. */
  readonly text: string;
  /** Ends after this many matches, at least 1. Default: searches everything. */
  readonly maxHits?: number;
  /**
   * Called after the matches of each message were taken. Steps that are searched again after a lost connection count
   * again. Must not throw.
   */
  readonly onProgress?: (progress: { readonly searchedSteps: bigint }) => void;
}

/** Matches of one call. */
const MOST_HITS = 1000;

/**
 * Finds a text in steps, and returns each match once, from the newest trajectory to the oldest (rule RD10). Makes as
 * many calls as needed, and continues after a lost connection. Throws permanent errors, and DEADLINE_EXCEEDED after
 * `giveUpAfterMs` without progress.
 *
 *     for await (const { trajectoryId, stepNumber, field } of searchSteps(client, { text: 'timeout', runId }))
 *       console.log(trajectoryId, stepNumber, field);
 */
export async function* searchSteps(
  client: Pick<ClientCalls, 'trajectories'>,
  { maxHits = Number.POSITIVE_INFINITY, onProgress, signal, giveUpAfterMs, silenceMs, ...request }: SearchOptions,
): AsyncGenerator<SearchHit, void, undefined> {
  let resumeToken = '';
  let found = 0;
  let searched = 0n;
  let searchedByCall = 0n;
  const search = (ended: AbortSignal) => {
    searched += searchedByCall;
    searchedByCall = 0n;
    // A token is valid only with the same fields, so each call has the same bound.
    const bounded = { ...request, maxHits: Math.min(MOST_HITS, maxHits) };
    return client.trajectories.searchSteps({ ...bounded, resumeToken }, { signal: ended });
  };
  do {
    for await (const message of resumedStream({ signal, giveUpAfterMs, silenceMs }, search)) {
      resumeToken = message.resumeToken;
      searchedByCall = message.searchedSteps;
      const hits = message.hits.slice(0, maxHits - found);
      found += hits.length;
      yield* hits;
      onProgress?.({ searchedSteps: searched + searchedByCall });
      if (found >= maxHits) return;
    }
  } while (resumeToken !== '');
}
