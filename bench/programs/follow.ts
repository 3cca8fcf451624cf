import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Client, credentials } from '@grpc/grpc-js';
import { ReadStepsRequestSchema, ReadStepsResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { interceptorsFor, pause, percentile, program } from './program.ts';

/** Followers of one trajectory, and a writer that appends a step at intervals. */
export interface FollowSettings {
  readonly writerAddress: string;
  readonly followerAddress: string;
  readonly token?: string | undefined;
  readonly trajectoryId: string;
  readonly followers: number;
  readonly connections: number;
  readonly everyMs: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface FollowFigures {
  /** Time from the commit time in a step (taken just before the commit) to its arrival, over all followers. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly deliveries: number;
}

const METHOD = '/anabranch.v1.TrajectoryService/ReadSteps';
const same = (bytes: Buffer) => bytes;

await program(async (settings: FollowSettings): Promise<FollowFigures> => {
  const { trajectoryId, everyMs, token } = settings;
  const delays: number[] = [];
  const clients = Array.from(
    { length: settings.connections },
    (_, i) =>
      new Client(settings.followerAddress, credentials.createInsecure(), {
        'bench.connection': i,
        'grpc.use_local_subchannel_pool': 1,
        interceptors: interceptorsFor(token),
      }),
  );
  const request = Buffer.from(
    toBinary(ReadStepsRequestSchema, create(ReadStepsRequestSchema, { trajectoryId, follow: true })),
  );
  const live = Array.from({ length: settings.followers }, (_, i) =>
    follow(clients[i % clients.length]!, request, (delay) => delays.push(delay)),
  );
  await Promise.all(live);

  const client = connectClient({ address: settings.writerAddress, ...(token !== undefined && { token }) });
  const writer = await openWriter(client, { trajectoryId });
  const work = async (seconds: number) => {
    for (const end = performance.now() + seconds * 1000; performance.now() < end; ) {
      await writer.append({ reward: 1 });
      await pause(everyMs / 1000);
    }
  };
  await work(settings.warmupSeconds);
  delays.length = 0;
  await work(settings.seconds);
  return { p50Ms: percentile(delays, 0.5), p99Ms: percentile(delays, 0.99), deliveries: delays.length };
});

/** Resolves when the follower has caught up. */
function follow(client: Client, request: Buffer, heard: (delayMs: number) => void): Promise<void> {
  const call = client.makeServerStreamRequest(METHOD, same, same, request);
  return new Promise((resolve, reject) => {
    call.on('error', reject);
    call.on('data', (bytes: Buffer) => {
      const now = performance.timeOrigin + performance.now();
      const { steps, caughtUp } = fromBinary(ReadStepsResponseSchema, bytes);
      if (caughtUp) resolve();
      for (const { commitTime } of steps) {
        heard(now - Number(commitTime!.seconds) * 1000 - commitTime!.nanos / 1e6);
      }
    });
  });
}
