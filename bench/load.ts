import { Client, type ClientDuplexStream, credentials } from '@grpc/grpc-js';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { AppendStepsRequestSchema, AppendStepsResponseSchema } from '../gen/es/anabranch/v1/trajectory_service_pb.js';
import { FrameTemplate } from './payload.ts';

/** One load of append streams, as a program of its own: settings come as JSON in argv, figures leave as JSON on stdout. */
export interface LoadSettings {
  readonly address: string;
  /** One trajectory a stream. */
  readonly trajectories: readonly string[];
  readonly connections: number;
  /** Steps a stream may have unacked; 1: waits for each ack. */
  readonly window: number;
  readonly stepsPerFrame: number;
  readonly withState: boolean;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface LoadFigures {
  readonly stepsPerSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Acked steps of the slowest and the fastest stream. */
  readonly slowest: number;
  readonly fastest: number;
  readonly clientCpuSeconds: number;
  readonly frameBytes: number;
}

class Stream {
  acked = 0;
  private sent = 0;
  private readonly call: ClientDuplexStream<Buffer, Buffer>;
  private readonly template: FrameTemplate;
  private readonly index: number;
  private readonly settings: LoadSettings;
  private readonly sentAt: number[] = [];
  private stopped = false;
  readonly latencies: number[] = [];

  constructor(client: Client, index: number, trajectoryId: string, template: FrameTemplate, settings: LoadSettings) {
    this.index = index;
    this.template = template;
    this.settings = settings;
    this.call = client.makeBidiStreamRequest(
      '/anabranch.v1.TrajectoryService/AppendSteps',
      (frame: Buffer) => frame,
      (bytes: Buffer) => bytes,
    );
    this.call.on('data', (bytes: Buffer) => this.heard(bytes));
    this.call.on('error', (error) => {
      if (!this.stopped) throw error;
    });
    const open = create(AppendStepsRequestSchema, { open: { trajectoryId, writerId: `bench-${process.pid}-${index}`, takeOverEpoch: 1n } });
    this.call.write(Buffer.from(toBinary(AppendStepsRequestSchema, open)));
  }

  stop(): void {
    this.stopped = true;
    this.call.cancel();
  }

  private heard(bytes: Buffer): void {
    const { opened, ack } = fromBinary(AppendStepsResponseSchema, bytes);
    if (opened !== undefined) {
      this.sent = Number(opened.nextStepNumber);
      this.acked = this.sent;
    }
    if (ack !== undefined) {
      const next = Number(ack.nextStepNumber);
      const since = this.sentAt.shift();
      if (this.settings.window === 1 && since !== undefined) this.latencies.push(performance.now() - since);
      this.acked = next;
    }
    this.fill();
  }

  private fill(): void {
    const { window, stepsPerFrame } = this.settings;
    while (!this.stopped && this.sent + stepsPerFrame - this.acked <= Math.max(window, stepsPerFrame)) {
      if (window === 1) this.sentAt.push(performance.now());
      this.call.write(this.template.frame(this.index, this.sent));
      this.sent += stepsPerFrame;
    }
  }
}

async function run(settings: LoadSettings): Promise<LoadFigures> {
  const template = new FrameTemplate(settings.stepsPerFrame, settings.withState);
  const clients = Array.from(
    { length: settings.connections },
    (_, i) => new Client(settings.address, credentials.createInsecure(), { 'bench.connection': i, 'grpc.use_local_subchannel_pool': 1 }),
  );
  const streams = settings.trajectories.map((id, i) => new Stream(clients[i % clients.length]!, i, id, template, settings));
  await sleep(settings.warmupSeconds);
  const before = streams.map((stream) => stream.acked);
  for (const stream of streams) stream.latencies.length = 0;
  const cpu = process.cpuUsage();
  const start = performance.now();
  await sleep(settings.seconds);
  const elapsed = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  const acked = streams.map((stream, i) => stream.acked - before[i]!);
  const latencies = streams.flatMap((stream) => stream.latencies).sort((a, b) => a - b);
  for (const stream of streams) stream.stop();
  for (const client of clients) client.close();
  return {
    stepsPerSecond: acked.reduce((sum, n) => sum + n, 0) / elapsed,
    p50Ms: latencies[Math.floor(latencies.length * 0.5)] ?? Number.NaN,
    p99Ms: latencies[Math.floor(latencies.length * 0.99)] ?? Number.NaN,
    slowest: Math.min(...acked),
    fastest: Math.max(...acked),
    clientCpuSeconds: (user + system) / 1e6,
    frameBytes: template.size,
  };
}

function sleep(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

const figures = await run(JSON.parse(process.argv[2] ?? '{}') as LoadSettings);
process.stdout.write(`${JSON.stringify(figures)}\n`);
process.exit(0);
