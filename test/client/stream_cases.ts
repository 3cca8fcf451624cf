/**
 * The server of the scripted streams in sending_cases.json: what it receives and answers, and what a client has to do
 * then. The writer of this client and the sender of the Python client are tested against it.
 */
import { readFileSync } from 'node:fs';
import { Code, ConnectError, type ServiceImpl } from '@connectrpc/connect';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type {
  AppendOpen,
  AppendStepsRequest,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  type AppendScript,
  ack,
  opened,
  type PeerStream,
  refusal,
  type ScriptedPeer,
  startPeer,
  TRAJECTORY,
} from './scripted-peer.ts';

/** An error of the server. Unset: no Anabranch reason, no metadata, no RetryInfo. */
export interface CaseError {
  /** Name of the gRPC code. */
  readonly code: string;
  readonly reason?: string;
  /** `$writer` stands for the id of the writer that opened the stream. */
  readonly metadata?: Readonly<Record<string, string>>;
  readonly retry_after_ms?: number;
}

/** What the server does next on a stream. Each action has one key. The stream ends with OK after the last one. */
interface Action {
  /** Accepts the stream. */
  readonly grant?: { readonly epoch: number; readonly end: number };
  /** Waits for exactly these frames, each a range of step numbers: `0-3`. */
  readonly receive?: readonly string[];
  readonly ack?: number;
  /** Reports a seal that nobody requested. */
  readonly seal?: number;
  readonly fail?: CaseError;
  /** Is silent until the client ends the stream. */
  readonly mute?: true;
  /** Destroys the connections. */
  readonly break?: true;
  /** Sends GOAWAY: the connections take no further streams. */
  readonly goaway?: true;
  /** Acks every frame until the client ends the stream. */
  readonly serve?: true;
}

interface StreamScript {
  /** What `open` must have: default no epoch, no uid, no creation, and the trajectory of the case. */
  readonly open?: { readonly epoch?: number; readonly uid?: true; readonly create?: true; readonly branch?: true };
  readonly then: readonly Action[];
}

/** What must be seen at the end. */
export interface StreamResult {
  /** All steps below this number are durable. */
  readonly durable: number;
  /** Reason of the error that ended the writer, or its code if it has no reason. Empty if there is none. */
  readonly failure: string;
  /** Number of streams that were opened. Default: all of the script. */
  readonly streams?: number;
  /** Minimum number of connections. */
  readonly connections?: number;
  /** Calls besides the streams, each with its step number. */
  readonly calls?: readonly string[];
  /** Steps that were sent with a marker in their place. */
  readonly markers?: readonly number[];
  /** Minimum time between the end of a stream and the next one. */
  readonly waited_ms?: number;
}

export interface StreamCase {
  readonly title: string;
  /** Numbers of steps that the client appends together. The next ones follow when these are durable. */
  readonly batches: readonly number[];
  /** Number of the first step. Default 0. */
  readonly start?: number;
  /** Sizes of the steps in KiB. Default: a few bytes. */
  readonly kib?: readonly number[];
  /** Whether the client creates the trajectory. Default false. */
  readonly create?: true;
  /** Whether the client may take over. Default true. */
  readonly take_over?: false;
  readonly window_steps?: number;
  readonly window_kib?: number;
  readonly silence_ms?: number;
  readonly give_up_after_ms?: number;
  /** GetStep returns steps below this number as they were received, and steps of another writer from it on. */
  readonly stored?: number;
  readonly streams: readonly StreamScript[];
  readonly writer: StreamResult;
  /** Of the Python client, where it has a remedy and the writer fails. */
  readonly recorder?: StreamResult;
}

/** What a server has seen of a case. */
export interface Seen {
  /** What differed from the script. The stream was ended with an error then. */
  readonly problems: readonly string[];
  readonly streams: number;
  readonly connections: number;
  readonly calls: readonly string[];
  readonly markers: readonly number[];
  readonly waited_ms: number;
}

export interface CaseServer {
  readonly url: string;
  seen(): Seen;
  stop(): Promise<void>;
}

/** Returns the cases of the table. */
export function streamCases(): readonly StreamCase[] {
  const text = readFileSync(new URL('sending_cases.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly streams: readonly StreamCase[] }).streams;
}

export async function startCase(streamCase: StreamCase): Promise<CaseServer> {
  const player = new Player(streamCase);
  const append = streamCase.streams.map((script) => player.script(script));
  const peer = await startPeer({ append, trajectories: player.calls() });
  player.peer = peer;
  return { url: peer.url, seen: () => player.seen(), stop: () => peer[Symbol.asyncDispose]() };
}

/** Plays the script of one case. */
class Player {
  peer: ScriptedPeer | undefined;
  readonly #case: StreamCase;
  readonly #problems: string[] = [];
  readonly #calls: string[] = [];
  readonly #received = new Map<bigint, Step>();
  readonly #markers = new Set<number>();
  #endedAt: number | undefined;
  #waitedMs = 0;

  constructor(streamCase: StreamCase) {
    this.#case = streamCase;
  }

  seen(): Seen {
    return {
      problems: this.#problems,
      streams: this.peer?.opens.length ?? 0,
      connections: this.peer?.connections ?? 0,
      calls: this.#calls,
      markers: [...this.#markers],
      waited_ms: this.#waitedMs,
    };
  }

  script(script: StreamScript): AppendScript {
    const player = this;
    return async function* (stream) {
      player.#checkOpen(stream.open, script);
      try {
        for (const action of script.then) yield* player.#act(action, stream);
      } finally {
        player.#endedAt = performance.now();
      }
    };
  }

  /** The calls that the recorder makes to find out what another writer stored, and to branch there. */
  calls(): Partial<ServiceImpl<typeof TrajectoryService>> {
    return {
      getStep: ({ stepNumber = 0n }) => {
        this.#calls.push(`GetStep ${stepNumber}`);
        const step = stepNumber < (this.#case.stored ?? 0) ? this.#received.get(stepNumber) : undefined;
        return { step: step ?? { stepNumber, reward: -1 } };
      },
      branchTrajectory: ({ branchId, stepNumber }) => {
        this.#calls.push(`BranchTrajectory ${stepNumber}`);
        return { trajectory: { id: branchId } };
      },
      createTrajectory: ({ trajectoryId }) => {
        this.#calls.push('CreateTrajectory');
        return { trajectory: { id: trajectoryId } };
      },
    };
  }

  #checkOpen(open: AppendOpen, { open: expected = {} }: StreamScript): void {
    if (this.#endedAt !== undefined) this.#waitedMs = Math.max(this.#waitedMs, performance.now() - this.#endedAt);
    const { epoch, uid = false, create = false, branch = false } = expected;
    const found = {
      epoch: open.takeOverEpoch === undefined ? undefined : Number(open.takeOverEpoch),
      uid: open.uid !== '',
      create: open.create !== undefined,
      branch: open.trajectoryId !== TRAJECTORY,
    };
    this.#require('open', JSON.stringify({ epoch, uid, create, branch }), JSON.stringify(found));
  }

  async *#act(action: Action, { open, next, context }: PeerStream): AsyncGenerator<ReturnType<typeof ack>> {
    if (action.grant !== undefined) yield opened(BigInt(action.grant.epoch), BigInt(action.grant.end));
    for (const expected of action.receive ?? []) this.#require('frame', expected, this.#take(await next()));
    if (action.ack !== undefined) yield ack(BigInt(action.ack));
    if (action.seal !== undefined) {
      yield { sealed: { status: Status.COMPLETED, nextStepNumber: BigInt(action.seal) } };
    }
    if (action.fail !== undefined) throw errorOf(action.fail, open.writerId);
    if (action.goaway) this.peer?.drainConnections();
    if (action.break) this.peer?.breakConnections();
    if (action.mute) await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    if (!action.serve) return;
    for (let frame = await next(); frame !== undefined; frame = await next()) {
      this.#take(frame);
      yield ack((frame.steps.at(-1)?.stepNumber ?? -1n) + 1n);
    }
  }

  /** Keeps the steps of a frame. Returns the range of their numbers. */
  #take(frame: AppendStepsRequest | undefined): string {
    if (frame === undefined) return 'the end of the stream';
    for (const step of frame.steps) {
      this.#received.set(step.stepNumber, step);
      if (step.infoJson.includes('"unstored"')) this.#markers.add(Number(step.stepNumber));
    }
    const numbers = frame.steps.map((step) => Number(step.stepNumber));
    const [first = -1, last = -1] = [numbers[0], numbers.at(-1)];
    if (numbers.some((number, index) => number !== first + index)) return numbers.join();
    return first === last ? `${first}` : `${first}-${last}`;
  }

  #require(what: string, expected: string, found: string): void {
    if (found === expected) return;
    this.#problems.push(`${what} ${found} of stream ${this.peer?.opens.length}: expected ${expected}`);
    throw new ConnectError('the script of this case ended', Code.Unimplemented);
  }
}

/** Returns an error of the table as the service sends it. */
export function errorOf({ code, reason = '', metadata = {}, retry_after_ms: delay = 0 }: CaseError, writerId = '') {
  const words = code.toLowerCase().split('_');
  const name = words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('');
  const known = Code[(name === 'Cancelled' ? 'Canceled' : name) as keyof typeof Code];
  if (reason === '') return new ConnectError('failed', known);
  const filled = Object.entries(metadata).map(([key, value]) => [key, value.replace('$writer', writerId)]);
  return refusal(known, reason, Object.fromEntries(filled), delay === 0 ? undefined : delay);
}
