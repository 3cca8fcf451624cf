import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { type Step, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type {
  ReadStepsRequest,
  SearchHit,
  SearchStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { type ResumeOptions, resumedStream } from './resumed_stream.ts';

/** Options of readSteps(). */
export interface ReadOptions extends ResumeOptions {
  readonly trajectoryId: string;
  /** First step to read. Default 0. */
  readonly startStepNumber?: bigint;
  /**
   * First step after the range. Default: the trajectory's end when the server begins to read. With `follow` there is no
   * default end.
   */
  readonly endStepNumber?: bigint;
  /** View of the steps. Default FULL. */
  readonly view?: View;
  /** Continues with new steps as they are committed, until `endStepNumber` or the seal. Default false. */
  readonly follow?: boolean;
  /** Called after every message, also after messages without steps. Must not throw. */
  readonly onProgress?: (progress: ReadProgress) => void;
}

/** Position of a read. */
export interface ReadProgress {
  /** The first step that was not delivered yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
}

/** A step and the id of the trajectory that owns it. Shared steps belong to an ancestor. */
export interface OwnedStep {
  readonly trajectoryId: string;
  readonly step: Step;
}

/**
 * Reads steps in order, each once. After a lost connection it reconnects and continues at the next step (rule R2). Ends
 * after the range; with `follow`, at `endStepNumber` or the seal. Throws permanent errors, and DEADLINE_EXCEEDED after
 * `giveUpAfterMs` without progress.
 *
 *     for await (const { step } of readSteps(client, { trajectoryId, follow: true })) console.log(step.reward);
 */
export async function* readSteps(
  client: Pick<ClientCalls, 'trajectories'>,
  options: ReadOptions,
): AsyncGenerator<OwnedStep, void, undefined> {
  let position = options.startStepNumber ?? 0n;
  const read = (signal: AbortSignal) => client.trajectories.readSteps(request(options, position), { signal });
  for await (const message of resumedStream(options, read)) {
    for (const step of message.steps) {
      // The position moves with each step that the caller takes, so that a lost connection within a message repeats no
      // step.
      position = stepAfter(position, step.stepNumber);
      yield { trajectoryId: message.trajectoryId, step };
    }
    const { caughtUp, sealed } = message;
    options.onProgress?.({ nextStepNumber: position, caughtUp, sealed });
  }
}

type Request = Pick<ReadStepsRequest, 'trajectoryId' | 'startStepNumber' | 'view' | 'follow' | 'endStepNumber'>;

function request(options: ReadOptions, startStepNumber: bigint): Request {
  const { trajectoryId, endStepNumber, view = View.UNSPECIFIED, follow = false } = options;
  return { trajectoryId, startStepNumber, endStepNumber, view, follow };
}

/** Checks that no step is missed, repeated or out of order (promise O1). */
export function stepAfter(due: bigint, sent: bigint): bigint {
  if (sent === due) return due + 1n;
  throw new ConnectError(`the server sent step ${sent}: expected step ${due}`, Code.DataLoss);
}

type SearchRequest = MessageInitShape<typeof SearchStepsRequestSchema>;

/** Options of searchSteps(): the text, and at most one place to search in. Without a place, everything is searched. */
export interface SearchOptions
  extends Pick<SearchRequest, 'trajectoryId' | 'treeId' | 'runId' | 'experimentId' | 'taskId'>,
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
