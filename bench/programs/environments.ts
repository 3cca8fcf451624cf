import process from 'node:process';
import { create, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { Client, credentials } from '@grpc/grpc-js';
import type { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendBatchRequestSchema,
  AppendBatchResponseSchema,
  AppendStepRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { rowPayload } from '../payload.ts';
import { program } from './program.ts';

/** Environments that step together: each waits until the steps of all are durable. */
export interface EnvironmentsSettings {
  readonly address: string;
  readonly trajectories: readonly string[];
  /** One message of AppendBatch for all environments, or a call of AppendStep for each. */
  readonly by: 'AppendBatch' | 'AppendStep';
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface EnvironmentsFigures {
  readonly stepsPerSecond: number;
  readonly clientCpuMicrosPerStep: number;
  /** Including the warm-up. */
  readonly allSteps: number;
}

const SERVICE = '/anabranch.v1.TrajectoryService';
const CONNECTIONS = 3;
const same = (bytes: Buffer) => bytes;

await program(async (settings: EnvironmentsSettings): Promise<EnvironmentsFigures> => {
  const { address, trajectories, by, warmupSeconds, seconds } = settings;
  const clients = Array.from(
    { length: CONNECTIONS },
    () => new Client(address, credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 }),
  );
  const step = by === 'AppendBatch' ? stepByBatch : stepByCalls;
  let number = 0;
  const until = async (end: number): Promise<number> => {
    const first = number;
    for (; performance.now() < end; number += 1) await step(clients, trajectories, number);
    return (number - first) * trajectories.length;
  };
  const begun = performance.now() + warmupSeconds * 1000;
  const warm = await until(begun);
  const cpu = process.cpuUsage();
  const steps = await until(begun + seconds * 1000);
  const { user, system } = process.cpuUsage(cpu);
  return {
    stepsPerSecond: steps / seconds,
    clientCpuMicrosPerStep: (user + system) / steps,
    allSteps: warm + steps,
  };
});

async function stepByBatch(
  [client]: readonly Client[],
  trajectories: readonly string[],
  number: number,
): Promise<void> {
  const entries = trajectories.map((trajectoryId, i) => ({ trajectoryId, steps: [stepOf(number, i)] }));
  const request = create(AppendBatchRequestSchema, { entries });
  const response = await ask(client!, 'AppendBatch', toBinary(AppendBatchRequestSchema, request));
  const { results } = fromBinary(AppendBatchResponseSchema, response);
  const failed = results.find(({ error }) => error !== undefined);
  if (failed !== undefined) throw new Error(failed.error?.message);
}

async function stepByCalls(clients: readonly Client[], trajectories: readonly string[], number: number): Promise<void> {
  const calls = trajectories.map((trajectoryId, i) => {
    const request = create(AppendStepRequestSchema, { trajectoryId, step: stepOf(number, i) });
    return ask(clients[i % clients.length]!, 'AppendStep', toBinary(AppendStepRequestSchema, request));
  });
  await Promise.all(calls);
}

function stepOf(number: number, environment: number): MessageInitShape<typeof StepSchema> {
  const { actions, observations, metrics } = rowPayload('step', number + environment);
  return {
    stepNumber: BigInt(number),
    actions: [...actions],
    observations: [...observations],
    metrics: { ...metrics },
    reward: 1,
  };
}

function ask(client: Client, method: string, request: Uint8Array): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(`${SERVICE}/${method}`, same, same, Buffer.from(request), (error, response) =>
      error === null && response !== undefined ? resolve(response) : reject(error),
    );
  });
}
