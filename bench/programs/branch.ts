import { create, toBinary } from '@bufbuild/protobuf';
import { Client, credentials } from '@grpc/grpc-js';
import { BranchTrajectoryRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { pause, percentile, program } from './program.ts';

/** Branches at each target in turn, one call at a time, and at most `perSecond` times a second. */
export interface BranchSettings {
  readonly address: string;
  readonly targets: readonly { readonly trajectoryId: string; readonly stepNumber: number }[];
  readonly warmupSeconds: number;
  readonly seconds: number;
  readonly perSecond?: number;
}

export interface BranchFigures {
  /** One value per target. */
  readonly p50Ms: readonly number[];
  readonly branches: number;
}

const METHOD = '/anabranch.v1.TrajectoryService/BranchTrajectory';
const same = (bytes: Buffer) => bytes;

await program(async (settings: BranchSettings): Promise<BranchFigures> => {
  const { targets, warmupSeconds, seconds, perSecond } = settings;
  const client = new Client(settings.address, credentials.createInsecure());
  const requests = targets.map(({ trajectoryId, stepNumber }) => {
    const request = create(BranchTrajectoryRequestSchema, { trajectoryId, stepNumber: BigInt(stepNumber) });
    return Buffer.from(toBinary(BranchTrajectoryRequestSchema, request));
  });
  const latencies = targets.map((): number[] => []);
  let branches = 0;
  const branch = async (target: number) => {
    const begun = performance.now();
    await call(client, requests[target]!);
    latencies[target]!.push(performance.now() - begun);
    branches += 1;
  };
  const work = async (forSeconds: number) => {
    const begun = performance.now();
    for (let made = 0; performance.now() - begun < forSeconds * 1000; made += 1) {
      await branch(made % targets.length);
      if (perSecond !== undefined)
        await pause(Math.max(0, begun / 1000 + (made + 1) / perSecond - performance.now() / 1000));
    }
  };
  await work(warmupSeconds);
  for (const list of latencies) list.length = 0;
  branches = 0;
  await work(seconds);
  return { p50Ms: latencies.map((list) => percentile(list, 0.5)), branches };
});

function call(client: Client, request: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(METHOD, same, same, request, (error) => (error === null ? resolve() : reject(error)));
  });
}
