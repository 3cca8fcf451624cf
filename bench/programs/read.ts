import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Client, credentials } from '@grpc/grpc-js';
import { ReadStepsRequestSchema, ReadStepsResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { percentile, program } from './program.ts';

/** One reader. With `seconds` it reads the first trajectory repeatedly; without, it reads each trajectory once. */
export interface ReadSettings {
  readonly address: string;
  readonly trajectories: readonly string[];
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface ReadFigures {
  readonly stepsPerSecond: number;
  /** Time of one read of a whole trajectory. */
  readonly p50Ms: number;
  readonly bytesPerStep: number;
  /** Including the warm-up. */
  readonly allSteps: number;
}

const METHOD = '/anabranch.v1.TrajectoryService/ReadSteps';
const same = (bytes: Buffer) => bytes;

interface OneRead {
  readonly steps: number;
  readonly bytes: number;
  readonly ms: number;
}

await program(async (settings: ReadSettings): Promise<ReadFigures> => {
  const client = new Client(settings.address, credentials.createInsecure());
  const { trajectories, warmupSeconds, seconds } = settings;
  const measureFor = async (forSeconds: number): Promise<OneRead[]> => {
    const reads: OneRead[] = [];
    const end = performance.now() + forSeconds * 1000;
    do reads.push(await readWhole(client, trajectories[0]!));
    while (performance.now() < end);
    return reads;
  };
  const warmup = seconds > 0 ? await measureFor(warmupSeconds) : [];
  const reads = seconds > 0 ? await measureFor(seconds) : await each(client, trajectories);
  const warmupSteps = warmup.reduce((total, { steps }) => total + steps, 0);
  const sum = (of: (read: OneRead) => number) => reads.reduce((total, read) => total + of(read), 0);
  const times = reads.map(({ ms }) => ms);
  return {
    stepsPerSecond: sum(({ steps }) => steps) / (sum(({ ms }) => ms) / 1000),
    p50Ms: percentile(times, 0.5),
    bytesPerStep: sum(({ bytes }) => bytes) / sum(({ steps }) => steps),
    allSteps: warmupSteps + sum(({ steps }) => steps),
  };
});

async function each(client: Client, trajectories: readonly string[]): Promise<OneRead[]> {
  const reads: OneRead[] = [];
  for (const id of trajectories) reads.push(await readWhole(client, id));
  return reads;
}

/** Only the last message is decoded, to check that the read is complete, so the server is measured. */
function readWhole(client: Client, trajectoryId: string): Promise<OneRead> {
  const begun = performance.now();
  const request = Buffer.from(toBinary(ReadStepsRequestSchema, create(ReadStepsRequestSchema, { trajectoryId })));
  const call = client.makeServerStreamRequest(METHOD, same, same, request);
  let last: Buffer | undefined;
  let bytes = 0;
  return new Promise((resolve, reject) => {
    call.on('data', (message: Buffer) => {
      last = message;
      bytes += message.length;
    });
    call.on('error', reject);
    call.on('end', () => {
      const steps = last === undefined ? 0 : Number(fromBinary(ReadStepsResponseSchema, last).nextStepNumber);
      resolve({ steps, bytes, ms: performance.now() - begun });
    });
  });
}
