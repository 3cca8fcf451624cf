import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import type { Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListStepsRequestSchema,
  type ListTrajectoriesRequestSchema,
  OnBranches,
  type OwnedStep as OwnedStepMessage,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendBatch, type EntryInit, type EntryResult } from '../../src/client/append_batch.ts';
import type { AnabranchClient } from '../../src/client/connection.ts';
import { reasonOf } from '../../src/client/errors.ts';
import { type OwnedStep, readSteps } from '../../src/client/reader.ts';
import { Patience, retrying, systemTiming } from '../../src/client/retry.ts';
import { downloadState, uploadState } from '../../src/client/states.ts';
import { readTrajectoryParts, type TrajectoryPart } from '../../src/client/trajectories.ts';

type Stored = Extract<EntryResult, { stored: true }>;

/** Deadline of a stream of states. */
const STREAM_MS = 5 * 60_000;

/** Options of all integrations. */
export interface PatienceOptions {
  /**
   * How long a call waits for a server that is away, in milliseconds, before it fails with DEADLINE_EXCEEDED. A write
   * may have been stored then. Default: 60,000.
   */
  readonly giveUpAfterMs?: number | undefined;
}

/** A page of listed steps. */
export interface StepPage {
  readonly steps: readonly OwnedStepMessage[];
  readonly nextPageToken: string;
  /** The bytes of states by digest. */
  readonly data: ReadonlyMap<string, Uint8Array>;
}

/** Steps to read. */
export interface StepRange {
  readonly trajectoryId: string;
  readonly from: bigint;
  /** The first step after the range. Default: the end of the trajectory. */
  readonly to?: bigint;
  readonly view?: View;
}

/** A client whose calls return when their data is durable, and wait for a server that is away. */
export class PatientClient {
  readonly client: AnabranchClient;
  readonly #giveUpAfterMs: number;

  constructor(client: AnabranchClient, { giveUpAfterMs = 60_000 }: PatienceOptions = {}) {
    this.client = client;
    this.#giveUpAfterMs = giveUpAfterMs;
  }

  /** Makes a call that may be repeated. */
  call<T>(send: (client: AnabranchClient) => Promise<T>): Promise<T> {
    const timing = systemTiming();
    return retrying(new Patience(this.#giveUpAfterMs, timing), timing, undefined, () => send(this.client));
  }

  /** Writes an entry: all of it or nothing. Throws its error. Repeating an entry has no effect. */
  async append(entry: EntryInit): Promise<Stored> {
    return await this.call(async (client) => {
      const [result] = await appendBatch(client, [entry]);
      if (result === undefined) throw new ConnectError('the server sent no result of the entry', Code.DataLoss);
      if (!result.stored) throw result.error;
      return result;
    });
  }

  /** Writes an entry, and creates its trajectory also if it was deleted, which an entry alone does not. */
  async appendAgain(entry: EntryInit): Promise<Stored> {
    const { trajectory, branch } = entry.create ?? {};
    if (trajectory === undefined && branch === undefined) return await this.append(entry);
    const stored = await orUndefined(['TRAJECTORY_NOT_FOUND'], this.append(entry));
    if (stored !== undefined) return stored;
    if (trajectory !== undefined) await this.call(({ trajectories }) => trajectories.createTrajectory(trajectory));
    if (branch !== undefined) await this.call(({ trajectories }) => trajectories.branchTrajectory(branch));
    return await this.append({ ...entry, create: undefined });
  }

  /** Lists trajectories, newest first. */
  async *list(filter: MessageInitShape<typeof ListTrajectoriesRequestSchema>): AsyncGenerator<Trajectory> {
    let pageToken = '';
    do {
      const request = { pageSize: 1000, ...filter, pageToken };
      const page = await this.call(({ trajectories }) => trajectories.listTrajectories(request));
      yield* page.trajectories;
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
  }

  /** Deletes a trajectory. Branches keep the steps that they share. No effect if there is none. */
  async delete(trajectoryId: string): Promise<void> {
    const request = { trajectoryId, onBranches: OnBranches.KEEP_SHARED };
    await orUndefined(
      ['TRAJECTORY_NOT_FOUND'],
      this.call(({ trajectories }) => trajectories.deleteTrajectory(request)),
    );
  }

  /** Returns a trajectory without its metadata; undefined if there is none. */
  async trajectory(trajectoryId: string, view: View): Promise<Trajectory | undefined> {
    const found = await orUndefined(
      ['TRAJECTORY_NOT_FOUND'],
      this.call(({ trajectories }) => trajectories.getTrajectory({ trajectoryId, view })),
    );
    return found?.trajectory;
  }

  read({ trajectoryId, from, to, view }: StepRange): AsyncGenerator<OwnedStep, void, undefined> {
    return readSteps(this.client, {
      trajectoryId,
      startStepNumber: from,
      ...(to === undefined ? {} : { endStepNumber: to }),
      ...(view === undefined ? {} : { view }),
      giveUpAfterMs: this.#giveUpAfterMs,
    });
  }

  /** Reads trajectories with their steps, in parts. Those that do not exist are left out. */
  readTrajectories(trajectoryIds: string[]): AsyncGenerator<TrajectoryPart, void, undefined> {
    return readTrajectoryParts(this.client, { trajectoryIds, giveUpAfterMs: this.#giveUpAfterMs });
  }

  /** Stores a state. Throws RangeError if it is too large. */
  async upload(bytes: Uint8Array): Promise<string> {
    const { stateBytes } = this.client.limits.current;
    if (bytes.byteLength > stateBytes) {
      throw new RangeError(`a value has ${bytes.byteLength} bytes: expected at most ${stateBytes}`);
    }
    return await uploadState(this.client, bytes, { giveUpAfterMs: this.#giveUpAfterMs });
  }

  /** Lists a page of steps. With `hasBytes`: and the bytes of their states by digest, with the same call. */
  listSteps(request: MessageInitShape<typeof ListStepsRequestSchema>, hasBytes: boolean): Promise<StepPage> {
    return this.call(async ({ trajectories, states }) => {
      const data = new Map<string, Uint8Array>();
      if (!hasBytes) return { ...(await trajectories.listSteps(request)), data };
      const page = { steps: [] as OwnedStepMessage[], nextPageToken: '', data };
      let whole = new Uint8Array();
      for await (const message of states.readStates({ steps: request }, { timeoutMs: STREAM_MS })) {
        page.steps.push(...message.steps);
        page.nextPageToken ||= message.nextPageToken;
        for (const { digest, size, offset, data: piece } of message.pieces) {
          if (offset === 0n) whole = new Uint8Array(Number(size));
          whole.set(piece, Number(offset));
          // A state that is deleted meanwhile does not become complete.
          if (Number(offset) + piece.byteLength === whole.byteLength) data.set(digest, whole);
        }
      }
      return page;
    });
  }

  download(state: Parameters<typeof downloadState>[1]): Promise<Uint8Array> {
    return downloadState(this.client, state, { giveUpAfterMs: this.#giveUpAfterMs });
  }
}

/** Returns undefined if a call fails for one of these reasons. */
export async function orUndefined<T>(reasons: readonly string[], call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (error) {
    if (reasons.includes(reasonOf(error) ?? '')) return undefined;
    throw error;
  }
}
