import {
  create,
  type DescMethod,
  type DescMethodStreaming,
  type DescMethodUnary,
  isMessage,
  type Message,
} from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import {
  ServerService,
  type WatchRequest,
  type WatchResponse,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import {
  type AppendBatchResponse,
  AppendBatchResponseSchema,
  type PartError,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../../gen/es/google/rpc/error_details_pb.js';
import { errorOfPart } from '../../../src/client/errors.ts';
import { collect } from '../story.ts';
import { ADMIN_RPCS } from './admin.ts';
import { RETENTION_RPCS } from './retention.ts';
import { makeRolloutScene, type RolloutScene } from './rollout_scene.ts';
import { ROLLOUT_RPCS } from './rollouts.ts';
import { makeRunScene, type RunScene } from './run_scene.ts';
import { RUN_RPCS } from './runs.ts';
import { makeScene, type Rpc, type RpcClient, type Scene } from './scene.ts';
import { SERVER_RPCS } from './server.ts';
import { smallSceneOf } from './small_scenes.ts';
import { STATE_RPCS } from './states.ts';
import { TRAJECTORY_RPCS } from './trajectories.ts';

/** Calls every method of all services by its descriptor, in scenes. */

/** AdminService first: it reads everything, of which there is little as yet. */
export const METHODS: readonly DescMethod[] = [
  AdminService,
  TrajectoryService,
  StateService,
  RunService,
  RolloutService,
  RetentionService,
  ServerService,
].flatMap((service): readonly DescMethod[] => service.methods);

export type AnyScene = Scene | RunScene | RolloutScene;
export type AnyRpc = Rpc<DescMethod, AnyScene>;
const RPCS = {
  ...TRAJECTORY_RPCS,
  ...STATE_RPCS,
  ...RUN_RPCS,
  ...ROLLOUT_RPCS,
  ...RETENTION_RPCS,
  ...ADMIN_RPCS,
  ...SERVER_RPCS,
} as unknown as Readonly<Record<string, AnyRpc | undefined>>;

export function casesOf(method: DescMethod): AnyRpc {
  const cases = RPCS[method.localName];
  if (cases === undefined) throw new Error(`${method.name} is driven by nothing: give it cases in test/wire/rpcs/`);
  return cases;
}

/** Any method by its descriptor: requests to send, and the answers. */
export async function call(transport: Transport, method: DescMethod, frames: readonly Message[]): Promise<Message[]> {
  const timeout = 120_000;
  if (method.methodKind === 'unary') {
    const { message } = await transport.unary(method as DescMethodUnary, undefined, timeout, undefined, frames[0]!);
    if (isMessage(message, AppendBatchResponseSchema)) throwEntryError(message);
    return [message];
  }
  async function* sent() {
    yield* frames;
  }
  // A watch ends when its caller leaves.
  const left = new AbortController();
  const { message } = await transport.stream(method as DescMethodStreaming, left.signal, timeout, undefined, sent());
  const isWatch = method === (ServerService.method.watch as DescMethod);
  try {
    return await collect(
      isWatch ? snapshots(frames[0] as WatchRequest, message as unknown as AsyncIterable<WatchResponse>) : message,
    );
  } finally {
    left.abort();
  }
}

/** Ends when the snapshots of all subjects are complete. Throws the error of a subject as the error of a call. */
async function* snapshots({ subjects }: WatchRequest, responses: AsyncIterable<WatchResponse>) {
  const left = new Set(Object.keys(subjects));
  for await (const response of responses) {
    const { name, caughtUp, error } = response;
    if (error !== undefined) throw errorOfPart(within(`subjects[${JSON.stringify(name)}]`, error));
    yield response;
    if (caughtUp) left.delete(name);
    if (left.size === 0) return;
  }
}

/** Throws the error of the first entry that failed as the error of a call. */
function throwEntryError({ results }: AppendBatchResponse): void {
  for (const [i, { error }] of results.entries()) if (error) throw errorOfPart(within(`entries[${i}]`, error));
}

function within(part: string, error: PartError): PartError {
  return error.field === '' ? error : { ...error, field: `${part}.${error.field}` };
}

export async function refusalOf(answers: Promise<unknown>): Promise<ConnectError | undefined> {
  return answers.then(
    () => undefined,
    (error: unknown) => ConnectError.from(error),
  );
}

export function reasonOf(error: ConnectError | undefined): string | undefined {
  return error?.findDetails(ErrorInfoSchema)[0]?.reason;
}

export function isRead({ idempotency }: DescMethod): boolean {
  return idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS;
}

export function takesFrames({ methodKind }: DescMethod): boolean {
  return methodKind === 'client_streaming' || methodKind === 'bidi_streaming';
}

export function clientOf(over: Transport): RpcClient {
  return {
    trajectories: createClient(TrajectoryService, over),
    states: createClient(StateService, over),
    runs: createClient(RunService, over),
    rollouts: createClient(RolloutService, over),
    retention: createClient(RetentionService, over),
    admin: createClient(AdminService, over),
  };
}

/** Makes the whole scene of a method's service. */
export function wholeSceneOf({ parent }: DescMethod, client: RpcClient): Promise<AnyScene> {
  if (parent.typeName === RolloutService.typeName) return makeRolloutScene(client);
  return parent.typeName === RunService.typeName ? makeRunScene(client) : makeScene(client);
}

/** Makes the scene that the requests of a method need, which may be less. */
export async function newSceneOf(method: DescMethod, client: RpcClient): Promise<AnyScene> {
  const make = smallSceneOf(method.localName);
  return make === undefined ? wholeSceneOf(method, client) : ((await make(client)) as AnyScene);
}

/** The requests of a method that succeed in a scene, each in the frames that the method takes. */
export async function framesOf(method: DescMethod, on: AnyScene): Promise<Message[][]> {
  return (await casesOf(method).requests(on)).map((frames) => frames.map((frame) => create(method.input, frame)));
}
