import {
  create,
  type DescMethodServerStreaming,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import {
  type ServerService,
  type WatchCall,
  type WatchResponse,
  WatchResponseSchema,
} from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError, invalidField } from '../../domain/errors.ts';
import type { Call, ServerStream } from '../method.ts';
import { watchRun } from '../run/watch.ts';
import { watchRuns } from '../run/watch_page.ts';
import { watchTree } from '../trajectory/watch.ts';
import { watchTrajectories } from '../trajectory/watch_page.ts';
import { merged } from './merged.ts';

type Answer = MessageInitShape<typeof WatchResponseSchema>;
type Watch = (request: Uint8Array, call: Call) => AsyncGenerator<Answer, void, undefined>;

/** The methods by their paths, as the proto names them. */
const WATCHES = new Map<string, Watch>([
  watchOf(RunService.method.watchRun, watchRun),
  watchOf(RunService.method.watchRuns, watchRuns),
  watchOf(TrajectoryService.method.watchTrajectories, watchTrajectories),
  watchOf(TrajectoryService.method.watchTree, watchTree),
]);

/** Watches several resources in one stream. */
export const watch: ServerStream<typeof ServerService.method.watch> = {
  async *messages({ watches }, call) {
    const stop = new AbortController();
    const within = { ...call, signal: AbortSignal.any([call.signal, stop.signal]) };
    try {
      for await (const [index, answer] of merged(watches.map((each) => answersOf(each, within)))) {
        yield create(WatchResponseSchema, { ...answer, watch: index }) satisfies WatchResponse;
      }
    } finally {
      // Ends the waits of the watches, so that they can be closed.
      stop.abort();
    }
  },
};

function answersOf({ method, request }: WatchCall, call: Call): AsyncGenerator<Answer, void, undefined> {
  const made = WATCHES.get(method)?.(request, call);
  if (made === undefined) throw invalidField('watches.method', `must be one of ${[...WATCHES.keys()].join(', ')}`);
  return made;
}

function watchOf<M extends DescMethodServerStreaming>(
  { parent, name, input, output }: M,
  { messages }: ServerStream<M>,
): [string, Watch] {
  async function* answers(bytes: Uint8Array, call: Call): AsyncGenerator<Answer, void, undefined> {
    let request = create(input) as MessageShape<M['input']>;
    try {
      request = decoded(() => fromBinary(input, bytes)) as MessageShape<M['input']>;
      call.check<M['input']>(input, request);
      for await (const message of messages(request, call)) yield { response: toBinary(output, message) };
    } catch (error) {
      if (!isOfWatch(error)) throw error;
      yield { error: call.errorOf<M['input']>(error, input, request) };
    }
  }
  return [`${parent.typeName}/${name}`, answers];
}

function decoded<T>(decode: () => T): T {
  try {
    return decode();
  } catch (error) {
    throw invalidField('request', `must be an encoded request of the method: ${(error as Error).message}`);
  }
}

/** Whether an error is about the resource or the request of one watch. Others end the whole call. */
function isOfWatch(error: unknown): boolean {
  return error instanceof AnabranchError && /^INVALID_|_NOT_FOUND$|_DELETED$/.test(error.reason);
}
