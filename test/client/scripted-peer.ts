/**
 * A server that follows the script of a test: late, misleading and failing answers that the real service cannot produce
 * on demand. It stores no steps and checks no rules.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Http2Server, type ServerHttp2Session } from 'node:http2';
import type { AddressInfo, ListenOptions } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter, type HandlerContext, type ServiceImpl } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { VERSION } from '../../gen/es/anabranch/v1/limits.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import {
  type RunChangesSchema,
  type RunSubject,
  ServerService,
  type WatchResponseSchema,
  type WatchSubject,
} from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  type AppendOpen,
  type AppendStepsRequest,
  type AppendStepsResponseSchema,
  type ReadStepsRequest,
  type ReadStepsResponseSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';

export type Answer = MessageInitShape<typeof AppendStepsResponseSchema>;
export type ReadAnswer = MessageInitShape<typeof ReadStepsResponseSchema>;
/** Changes of the watched run, whether the snapshot is complete, and why the watch of the run ends. */
export type WatchAnswer = MessageInitShape<typeof RunChangesSchema> &
  Pick<MessageInitShape<typeof WatchResponseSchema>, 'caughtUp' | 'error'>;

/** One append stream in the scripted server. */
export interface PeerStream {
  readonly open: AppendOpen;
  /** Returns the next frame after `open`; undefined when the client has half-closed. */
  next(): Promise<AppendStepsRequest | undefined>;
  readonly context: HandlerContext;
}

export type AppendScript = (stream: PeerStream) => AsyncGenerator<Answer>;
export type ReadScript = (request: ReadStepsRequest, context: HandlerContext) => AsyncGenerator<ReadAnswer>;

export type WatchScript = (run: RunSubject, context: HandlerContext) => AsyncGenerator<WatchAnswer>;

/** Each call takes the next script. A call without a remaining script is refused permanently. */
export interface Scripts {
  readonly append?: readonly AppendScript[];
  readonly read?: readonly ReadScript[];
  readonly watch?: readonly WatchScript[];
  /** Handlers of RunService, as far as a test needs them. */
  readonly runs?: Partial<ServiceImpl<typeof RunService>>;
  /** Handlers of RolloutService, as far as a test needs them. */
  readonly rollouts?: Partial<ServiceImpl<typeof RolloutService>>;
  /** Handlers of TrajectoryService except AppendSteps and ReadSteps, as far as a test needs them. */
  readonly trajectories?: Partial<ServiceImpl<typeof TrajectoryService>>;
  /** Handlers of StateService, as far as a test needs them. */
  readonly states?: Partial<ServiceImpl<typeof StateService>>;
  /** Handlers of ServerService. By default, the peer has the version and the limits of the client, and watches runs. */
  readonly server?: Partial<ServiceImpl<typeof ServerService>>;
}

export interface ScriptedPeer {
  readonly url: string;
  /** The `open` of every append stream so far. */
  readonly opens: AppendOpen[];
  /** Requests of every read so far. */
  readonly reads: ReadStepsRequest[];
  /** The run of every watch so far. */
  readonly watches: RunSubject[];
  /** HTTP/2 connections accepted so far. */
  readonly connections: number;
  /** Destroys every connection without closing it properly. */
  breakConnections(): void;
  /** Sends GOAWAY: open streams continue, and new ones need another connection. */
  drainConnections(): void;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Starts a server. By default, it listens on a Unix socket of its own: a client of another test, whose server is gone,
 * can reach a new one on the same port, and would take a script.
 */
export async function startPeer(scripts: Scripts, at: 'socket' | 'port' = 'socket'): Promise<ScriptedPeer> {
  const opens: AppendOpen[] = [];
  const reads: ReadStepsRequest[] = [];
  const appendScripts = [...(scripts.append ?? [])];
  const readScripts = [...(scripts.read ?? [])];
  const watches: RunSubject[] = [];
  const watchScripts = [...(scripts.watch ?? [])];
  const routes = (router: ConnectRouter) => {
    router.service(TrajectoryService, {
      ...scripts.trajectories,
      async *appendSteps(requests, context) {
        const frames = requests[Symbol.asyncIterator]();
        const first = await frames.next();
        if (first.done === true || first.value.open === undefined) throw new Error('the first frame was not an open');
        opens.push(first.value.open);
        const script = appendScripts.shift() ?? noScriptLeft;
        const next = async () => {
          const frame = await frames.next();
          return frame.done === true ? undefined : frame.value;
        };
        yield* script({ open: first.value.open, next, context });
      },
      async *readSteps(request, context) {
        reads.push(request);
        yield* (readScripts.shift() ?? noScriptLeft)(request, context);
      },
    });
    if (scripts.runs !== undefined) router.service(RunService, scripts.runs);
    if (scripts.rollouts !== undefined) router.service(RolloutService, scripts.rollouts);
    router.service(ServerService, {
      getServerInfo: () => ({ version: VERSION }),
      async *watch({ subjects }, context) {
        const [[name, { run }]] = Object.entries(subjects) as [[string, WatchSubject]];
        if (run === undefined) throw new Error('the subject was not a run');
        watches.push(run);
        for await (const { caughtUp, error, ...changes } of (watchScripts.shift() ?? noScriptLeft)(run, context)) {
          yield { name, run: changes, ...(caughtUp && { caughtUp }), ...(error && { error }) };
        }
      },
      ...scripts.server,
    });
    if (scripts.states !== undefined) router.service(StateService, scripts.states);
  };
  const server = createServer({ settings: { maxConcurrentStreams: 100 } }, connectNodeAdapter({ routes }));
  const sessions = new Set<ServerHttp2Session>();
  let connections = 0;
  server.on('session', (session) => {
    connections += 1;
    sessions.add(session);
    session.on('close', () => sessions.delete(session));
  });
  const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-peer-'));
  const socket = path.join(folder, 'sock');
  await listening(server, at === 'socket' ? { path: socket } : { port: 0, host: '127.0.0.1' });
  return {
    url: at === 'socket' ? `unix:${socket}` : `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    opens,
    reads,
    watches,
    get connections() {
      return connections;
    },
    breakConnections: () => {
      for (const session of sessions) session.destroy();
    },
    drainConnections: () => {
      for (const session of sessions) session.close();
    },
    async [Symbol.asyncDispose]() {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        for (const session of sessions) session.destroy();
      });
      await rm(folder, { recursive: true });
    },
  };
}

function listening(server: Http2Server, at: ListenOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(at, resolve);
  });
}

// biome-ignore lint/correctness/useYield: a script that only refuses
async function* noScriptLeft(): AsyncGenerator<never> {
  throw new ConnectError('the test has no script for this call', Code.Unimplemented);
}

/** An error in the form that the service sends. */
export function refusal(
  code: Code,
  reason: string,
  metadata: Record<string, string> = {},
  retryAfterMs?: number,
): ConnectError {
  const info = { desc: ErrorInfoSchema, value: { reason, domain: 'anabranch.v1', metadata } };
  if (retryAfterMs === undefined) return new ConnectError(`refused: ${reason}`, code, undefined, [info]);
  const retryDelay = { seconds: BigInt(Math.floor(retryAfterMs / 1000)), nanos: (retryAfterMs % 1000) * 1e6 };
  const retry = { desc: RetryInfoSchema, value: create(RetryInfoSchema, { retryDelay }) };
  return new ConnectError(`refused: ${reason}`, code, undefined, [info, retry]);
}

/** A grant, with default numbers for tests that do not check them. */
export function opened(epoch: bigint, nextStepNumber: bigint): Answer {
  return { opened: { epoch, uid: UID, nextStepNumber, status: 3 } };
}

export function ack(nextStepNumber: bigint): Answer {
  return { ack: { nextStepNumber } };
}

export const UID = '0191c5a0-0000-7000-8000-000000000001';
export const TRAJECTORY = '0191c5a0-0000-7000-8000-0000000000aa';

/** Grants, then acks every frame as it arrives, until the client half-closes. */
export function obliging(epoch: bigint, nextStepNumber: bigint, seen?: AppendStepsRequest[]): AppendScript {
  return async function* ({ next }) {
    yield opened(epoch, nextStepNumber);
    for (let frame = await next(); frame !== undefined; frame = await next()) {
      seen?.push(frame);
      const last = frame.steps.at(-1);
      const end = last === undefined ? nextStepNumber : last.stepNumber + 1n;
      if (last !== undefined) yield ack(end);
      if (frame.seal !== undefined) {
        const { status, message } = frame.seal;
        yield { sealed: { status, message, nextStepNumber: end } };
      }
    }
  };
}
