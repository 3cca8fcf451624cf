import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Client, type ClientDuplexStream, credentials } from '@grpc/grpc-js';
import {
  AppendStepsRequestSchema,
  AppendStepsResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { FrameTemplate, type Payload } from '../payload.ts';
import { interceptorsFor, pause, percentile, program } from './program.ts';

/** A load of append streams with @grpc/grpc-js. */
export interface AppendSettings {
  readonly address: string;
  /** The certificate, in PEM format, that the client trusts. Default: no TLS. */
  readonly ca?: string | undefined;
  readonly token?: string | undefined;
  /** One trajectory per stream. */
  readonly trajectories: readonly string[];
  readonly connections: number;
  /** Maximum unacked steps of a stream. If it is the size of one frame, the stream waits for each ack. */
  readonly window: number;
  readonly stepsPerFrame: number;
  readonly payload: Payload;
  /** All streams send the states of this number. Default: each stream sends its own states. */
  readonly sharedStates?: number;
  /**
   * Each stream sends the states of its index plus this number. Default 0: states that earlier rounds on the same
   * server have stored.
   */
  readonly statesFrom?: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
  /** Ends when every stream has this many acked steps, instead of after a time. */
  readonly steps?: number;
  /** Runs one stream at a time, in turn, so that their times can be compared. */
  readonly oneAtATime?: boolean;
}

export interface AppendFigures {
  readonly stepsPerSecond: number;
  /** From sending a frame to its ack, if each ack is awaited. One list per stream. */
  readonly p50Ms: readonly number[];
  readonly p99Ms: readonly number[];
  readonly maxMs: readonly number[];
  /** Acked steps of the slowest and of the fastest stream. */
  readonly slowest: number;
  readonly fastest: number;
  readonly ackedSteps: number;
  /** Including the warm-up. */
  readonly allSteps: number;
  /** During the measured seconds. */
  readonly clientCpuSeconds: number;
  readonly frameBytes: number;
}

const METHOD = '/anabranch.v1.TrajectoryService/AppendSteps';
const same = (bytes: Buffer) => bytes;

class Stream {
  acked = 0;
  /** End of the trajectory when the stream was opened. */
  #begin = 0;
  readonly latencies: number[] = [];
  #sent = 0;
  #sentAt = 0;
  #going = false;
  #stopped = false;
  readonly #call: ClientDuplexStream<Buffer, Buffer>;
  readonly #trajectoryId: string;
  readonly #template: FrameTemplate;
  readonly #index: number;
  readonly #settings: AppendSettings;
  readonly #enough = Promise.withResolvers<void>();
  readonly #opened = Promise.withResolvers<void>();
  #onAck: (() => void) | undefined;

  constructor(client: Client, index: number, trajectoryId: string, template: FrameTemplate, settings: AppendSettings) {
    this.#index = index;
    this.#template = template;
    this.#settings = settings;
    this.#call = client.makeBidiStreamRequest(METHOD, same, same);
    this.#call.on('data', (bytes: Buffer) => this.#heard(bytes));
    this.#call.on('error', (error) => {
      if (!this.#stopped) throw error;
    });
    this.#trajectoryId = trajectoryId;
  }

  open(): Promise<void> {
    const trajectoryId = this.#trajectoryId;
    const writerId = `bench-${process.pid}-${this.#index}`;
    const open = create(AppendStepsRequestSchema, { open: { trajectoryId, writerId, takeOverEpoch: 1n } });
    this.#call.write(Buffer.from(toBinary(AppendStepsRequestSchema, open)));
    return this.#opened.promise;
  }

  /** Resolves when the requested number of steps is acked. */
  get isComplete(): Promise<void> {
    return this.#enough.promise;
  }

  /** Sends within the window until `stop`. */
  go(): void {
    this.#going = true;
    this.#fill();
  }

  /** Sends one frame and waits for its ack. */
  once(): Promise<void> {
    const acked = new Promise<void>((resolve) => {
      this.#onAck = resolve;
    });
    this.#send();
    return acked;
  }

  get ackedHere(): number {
    return this.acked - this.#begin;
  }

  stop(): void {
    this.#stopped = true;
    this.#call.cancel();
  }

  #heard(bytes: Buffer): void {
    const { opened, ack } = fromBinary(AppendStepsResponseSchema, bytes);
    if (opened !== undefined) {
      this.#sent = Number(opened.nextStepNumber);
      this.#begin = this.#sent;
      this.acked = this.#sent;
      this.#opened.resolve();
    }
    if (ack === undefined) return;
    this.acked = Number(ack.nextStepNumber);
    if (this.acked === this.#sent) this.latencies.push(performance.now() - this.#sentAt);
    this.#onAck?.();
    if (this.acked >= (this.#settings.steps ?? Number.POSITIVE_INFINITY)) this.#enough.resolve();
    if (this.#going) this.#fill();
  }

  #fill(): void {
    const { window, stepsPerFrame } = this.#settings;
    const most = Math.max(window, stepsPerFrame);
    const end = this.#settings.steps ?? Number.POSITIVE_INFINITY;
    while (!this.#stopped && this.#sent < end && this.#sent + stepsPerFrame - this.acked <= most) this.#send();
  }

  #send(): void {
    this.#sentAt = performance.now();
    const { sharedStates, statesFrom = 0 } = this.#settings;
    this.#call.write(this.#template.frame(sharedStates ?? statesFrom + this.#index, this.#sent));
    this.#sent += this.#settings.stepsPerFrame;
  }
}

/** Lets streams append one after the other, with exactly one frame in flight. */
async function appendOneAtATime(streams: readonly Stream[], untilMs: number): Promise<void> {
  while (performance.now() < untilMs) for (const stream of streams) await stream.once();
}

await program(async (settings: AppendSettings): Promise<AppendFigures> => {
  const template = new FrameTemplate(settings.payload, settings.stepsPerFrame);
  const { address, ca, token } = settings;
  const options = (i: number) => ({
    'bench.connection': i,
    'grpc.use_local_subchannel_pool': 1,
    interceptors: interceptorsFor(token),
    // grpc-js asks for the name in the address, and Node allows none that is an IP address.
    ...(ca === undefined ? {} : { 'grpc.ssl_target_name_override': 'localhost' }),
  });
  const security = ca === undefined ? credentials.createInsecure() : credentials.createSsl(Buffer.from(ca));
  const clients = Array.from({ length: settings.connections }, (_, i) => new Client(address, security, options(i)));
  const streams = settings.trajectories.map(
    (id, i) => new Stream(clients[i % clients.length]!, i, id, template, settings),
  );
  // Opened in batches, because a thousand opens are a thousand commits.
  for (let i = 0; i < streams.length; i += 16)
    await Promise.all(streams.slice(i, i + 16).map((stream) => stream.open()));
  const work = async (seconds: number): Promise<unknown> => {
    if (settings.oneAtATime === true) return appendOneAtATime(streams, performance.now() + seconds * 1000);
    if (settings.steps !== undefined) return Promise.all(streams.map((stream) => stream.isComplete));
    return pause(seconds);
  };

  if (settings.oneAtATime !== true) for (const stream of streams) stream.go();
  await work(settings.warmupSeconds);
  const before = streams.map((stream) => stream.acked);
  for (const stream of streams) stream.latencies.length = 0;
  const cpu = process.cpuUsage();
  const start = performance.now();
  await work(settings.seconds);
  const elapsed = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  const acked = streams.map((stream, i) => stream.acked - before[i]!);
  for (const stream of streams) stream.stop();
  for (const client of clients) client.close();
  const total = acked.reduce((sum, n) => sum + n, 0);
  return {
    stepsPerSecond: total / elapsed,
    p50Ms: streams.map(({ latencies }) => percentile(latencies, 0.5)),
    p99Ms: streams.map(({ latencies }) => percentile(latencies, 0.99)),
    maxMs: streams.map(({ latencies }) => percentile(latencies, 1)),
    slowest: Math.min(...acked),
    fastest: Math.max(...acked),
    ackedSteps: total,
    allSteps: streams.reduce((sum, stream) => sum + stream.ackedHere, 0),
    clientCpuSeconds: (user + system) / 1e6,
    frameBytes: template.size,
  };
});
