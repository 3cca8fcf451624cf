import { randomUUID } from 'node:crypto';
import { constants } from 'node:http2';
import { setTimeout as wait } from 'node:timers/promises';
import { fromBinary } from '@bufbuild/protobuf';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { ReadMetricsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { WatchRequestSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import {
  GetStateRequestSchema,
  PutStateRequestSchema,
  PutStateResponseSchema,
  ReadStatesRequestSchema,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  ReadStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { loadConfig } from '../../src/config/config.ts';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { Port } from '../../src/listen/port.ts';
import { createHandler } from '../../src/rpc/handler.ts';
import { openStore } from '../../src/store/open.ts';
import { createApp } from '../../src/stream/app.ts';
import { packageVersion } from '../../src/version.ts';
import { RunScene } from '../store/run_scene.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { NO_DATABASE } from '../support/no_database.ts';
import { envelope, http2Session, openEnvelopes, RawCall, rawCall, until } from '../wire/raw.ts';

const TRAJECTORIES = '/anabranch.v1.TrajectoryService';
const STATES = '/anabranch.v1.StateService';
const RUNS = '/anabranch.v1.RunService';
const SERVER = '/anabranch.v1.ServerService';

/** More bytes than the window of a stream, so that a sender has to wait for the reader. */
const MORE_THAN_A_WINDOW = 400_000;

describe('R3: a slow reader', () => {
  it('that follows is ended by a reset that gRPC reports as RESOURCE_EXHAUSTED, without effect on writer and server', async () => {
    await using service = await serve();
    const slow = service.follower();
    await slow.messages(1);
    slow.stream.pause();
    await service.write(3);
    await service.cutsOff(slow);
  });

  it('that follows and has received everything may wait without limit', async () => {
    await using service = await serve();
    const patient = service.follower();
    await patient.messages(1);
    await wait(SLOW_READER_MS * 4);
    await service.write(1);
    await patient.messages(2);
    patient.stream.close();
  });

  it('of a range of steps is cut off too', async () => {
    await using service = await serve();
    await service.write(3);
    const slow = await service.stopped(`${TRAJECTORIES}/ReadSteps`, envelope(ReadStepsRequestSchema, service.named));
    await service.cutsOff(slow);
  });

  it('of the states along a trajectory is cut off too', async () => {
    await using service = await serve();
    await service.write(3);
    const request = { range: service.named };
    const slow = await service.stopped(`${STATES}/ReadStates`, envelope(ReadStatesRequestSchema, request));
    await service.cutsOff(slow);
  });

  it('of one state is cut off too', async () => {
    await using service = await serve();
    const digest = await service.putState(MORE_THAN_A_WINDOW);
    const slow = await service.stopped(`${STATES}/GetState`, envelope(GetStateRequestSchema, { digest }));
    await service.cutsOff(slow);
  });

  it('of a state over plain HTTP is cut off likewise', async () => {
    await using service = await serve();
    const slow = await service.stopped(`/states/${await service.putState(MORE_THAN_A_WINDOW)}`, undefined, 'GET');
    await service.cutsOff(slow);
  });

  it('of metrics is cut off too', async () => {
    await using service = await serve();
    const runId = await service.makeMeasuredRun();
    const slow = await service.stopped(`${RUNS}/ReadMetrics`, envelope(ReadMetricsRequestSchema, { runIds: [runId] }));
    await service.cutsOff(slow);
  });

  it('that watches a run is cut off too', async () => {
    await using service = await serve();
    const runId = await service.makeStagedRun();
    const subjects = { it: { run: { runId } } };
    const slow = await service.stopped(`${SERVER}/Watch`, envelope(WatchRequestSchema, { subjects }));
    await service.cutsOff(slow);
  });
});

const SLOW_READER_MS = 600;

/** A service with a trajectory of its own. */
async function serve() {
  const database = await createMigratedDatabase('sqlite');
  const logger = pino({ level: 'silent' });
  const config = loadConfig({ env: {}, flags: { database: database.url }, cwd: '/', readFile: () => undefined });
  const store = await openStore(config.database, { logger });
  const ids = { uuid: randomUUID, uid: randomUUID };
  const app = createApp({ store, logger, ids, settings: { slowReaderMs: SLOW_READER_MS } });
  const { handle, calls } = createHandler({
    app,
    logger,
    info: { version: packageVersion(), limits: LIMITS },
    database: NO_DATABASE,
  });
  const onError = (error: unknown) => {
    throw error;
  };
  const { messageBytes: maxMessageBytes } = LIMITS;
  const port = new Port({ host: '127.0.0.1', port: 0, handler: handle, maxMessageBytes, maxStreams: 100, onError });
  const url = `http://127.0.0.1:${(await port.listen()).port}`;
  const [writing, reading] = [await http2Session(url), await http2Session(url)];
  const named = { trajectoryId: randomUUID() };
  await rawCall(writing, `${TRAJECTORIES}/CreateTrajectory`, envelope(CreateTrajectoryRequestSchema, named));

  return {
    named,
    follower(): RawCall {
      const call = new RawCall(reading, `${TRAJECTORIES}/ReadSteps`);
      call.stream.end(envelope(ReadStepsRequestSchema, { ...named, follow: true }));
      return call;
    },
    /** A reader that sends its request and reads nothing. */
    async stopped(path: string, request?: Uint8Array, method = 'POST'): Promise<RawCall> {
      const call = new RawCall(reading, path, { ':method': method });
      call.stream.pause();
      call.stream.end(request);
      await until(() => calls.running === 1, 'the reader is served');
      return call;
    },
    /** Appends steps, each with a text and a state that fill a window. */
    async write(count: number): Promise<void> {
      const writer = new RawCall(writing, `${TRAJECTORIES}/AppendSteps`);
      writer.stream.write(envelope(AppendStepsRequestSchema, { open: { ...named, writerId: 'w' } }));
      for (let i = 0; i < count; i += 1) {
        const text = 'x'.repeat(MORE_THAN_A_WINDOW);
        const data = Buffer.alloc(MORE_THAN_A_WINDOW, i);
        const step = { stepNumber: BigInt(i), observations: [{ content: { text } }], states: [{ data }] };
        writer.stream.write(envelope(AppendStepsRequestSchema, { steps: [step] }));
      }
      writer.stream.end();
      expect((await writer.outcome).status).toBe(0);
    },
    /** A run whose stages fill a window. */
    async makeStagedRun(): Promise<string> {
      const scene = new RunScene(store, ANONYMOUS.namespace);
      const run = await scene.makeRun();
      const names = Array.from({ length: LIMITS.metrics }, (_, i) => `${i}`.padEnd(LIMITS.metricKeyBytes, 'k'));
      const metrics = new Map(names.map((name, i) => [name, i]));
      for (let number = 0n; number < 20n; number += 1n) {
        const { id } = await scene.stage(run, { number });
        await store.updateStage(ANONYMOUS.namespace, id, { metrics });
      }
      return run.id;
    },
    /** A run whose metrics fill a window. */
    async makeMeasuredRun(): Promise<string> {
      const run = await new RunScene(store, ANONYMOUS.namespace).makeRun();
      const points = Array.from({ length: MORE_THAN_A_WINDOW / 8 }, (_, i) => ({
        name: 'loss',
        metricStep: BigInt(i),
        value: i,
        stageId: undefined,
      }));
      await store.logMetrics(ANONYMOUS.namespace, run.id, points);
      return run.id;
    },
    async putState(size: number): Promise<string> {
      const chunk = Buffer.alloc(size / 2);
      const put = envelope(PutStateRequestSchema, { chunk });
      const { body } = await rawCall(writing, `${STATES}/PutState`, Buffer.concat([put, put]));
      return fromBinary(PutStateResponseSchema, openEnvelopes(body)[0]!).state!.digest;
    },
    async cutsOff(slow: RawCall): Promise<void> {
      await until(() => calls.running === 0 && app.changes.listeners === 0, 'the reader is cut off');
      slow.stream.resume();
      expect((await slow.outcome).reset).toBe(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    },
    async [Symbol.asyncDispose]() {
      writing.destroy();
      reading.destroy();
      await port.drain(0);
      await app.close();
      await store.close();
      await database[Symbol.asyncDispose]();
    },
  };
}
