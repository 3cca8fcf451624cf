import process from 'node:process';
import { Client, credentials } from '@grpc/grpc-js';
import { MetricTemplate } from '../payload.ts';
import { percentile, program } from './program.ts';

/** Callers that log points of their own runs, one batch after the other. */
export interface MetricsSettings {
  readonly address: string;
  readonly runs: readonly string[];
  readonly connections: number;
  readonly pointsPerCall: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface MetricsFigures {
  readonly pointsPerSecond: number;
  readonly p50Ms: number;
  /** Including the warm-up. */
  readonly allPoints: number;
  readonly clientCpuSeconds: number;
}

const METHOD = '/anabranch.v1.RunService/LogMetrics';
const same = (bytes: Buffer) => bytes;

await program(async (settings: MetricsSettings): Promise<MetricsFigures> => {
  const { address, runs, connections, pointsPerCall, warmupSeconds, seconds } = settings;
  const clients = Array.from(
    { length: connections },
    // Without this option all clients of one address share a connection.
    () => new Client(address, credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 }),
  );
  const cpu = process.cpuUsage();
  const begun = performance.now() + warmupSeconds * 1000;
  const end = begun + seconds * 1000;
  const times: number[] = [];
  let allPoints = 0;
  let points = 0;
  await Promise.all(
    runs.map(async (run, i) => {
      const template = new MetricTemplate(run, pointsPerCall);
      for (let step = 0; ; step += template.steps) {
        const sent = performance.now();
        if (sent >= end) return;
        await log(clients[i % connections]!, template.batch(step));
        const now = performance.now();
        allPoints += pointsPerCall;
        if (sent < begun || now > end) continue;
        points += pointsPerCall;
        times.push(now - sent);
      }
    }),
  );
  const { user, system } = process.cpuUsage(cpu);
  return {
    pointsPerSecond: points / seconds,
    p50Ms: percentile(times, 0.5),
    allPoints,
    clientCpuSeconds: (user + system) / 1e6,
  };
});

function log(client: Client, request: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(METHOD, same, same, request, (error) => (error === null ? resolve() : reject(error)));
  });
}
