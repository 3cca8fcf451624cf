import { randomUUID } from 'node:crypto';
import { create, toBinary } from '@bufbuild/protobuf';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import {
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  ReadStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { createApp } from '../../src/app/app.ts';
import { loadConfig } from '../../src/config.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { Port } from '../../src/listen/port.ts';
import { createHandler } from '../../src/rpc/handler.ts';
import { openStore } from '../../src/store/open.ts';
import { createDatabase } from '../support/database.ts';
import { envelope, http2Session, inEnvelope, RawCall, rawCall, until } from './raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';

describe('R3: a slow follower', () => {
  it('is cut off by a reset that gRPC calls RESOURCE_EXHAUSTED, and costs neither its writer nor the server', async () => {
    await using database = await createDatabase('sqlite');
    const logger = pino({ level: 'silent' });
    const config = loadConfig({ env: {}, flags: { database: database.url }, cwd: '/', readFile: () => undefined });
    const store = await openStore(config.database, { logger });
    const app = createApp({
      store,
      logger,
      ids: { uuid: randomUUID, uid: randomUUID },
      settings: { slowReaderMs: 300 },
    });
    const service = createHandler({ app, logger });
    const port = new Port({
      host: '127.0.0.1',
      port: 0,
      handler: service.handle,
      maxMessageBytes: LIMITS.messageBytes,
      maxStreams: 100,
      onError: (error) => {
        throw error;
      },
    });
    const url = `http://127.0.0.1:${(await port.listen()).port}`;
    const [writing, following] = [await http2Session(url), await http2Session(url)];

    const trajectoryId = randomUUID();
    await rawCall(writing, `${SERVICE}/CreateTrajectory`, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    const slow = new RawCall(following, `${SERVICE}/ReadSteps`);
    slow.stream.end(envelope(ReadStepsRequestSchema, { trajectoryId, follow: true }));
    await slow.messages(1);
    slow.stream.pause();
    const writer = new RawCall(writing, `${SERVICE}/AppendSteps`);
    writer.stream.write(envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } }));
    const text = 'x'.repeat(100_000);
    for (let i = 0n; i < 40n; i += 1n) {
      const frame = create(AppendStepsRequestSchema, {
        steps: [{ stepNumber: i, observations: [{ content: { text } }] }],
      });
      writer.stream.write(inEnvelope(toBinary(AppendStepsRequestSchema, frame)));
    }
    writer.stream.end();
    expect((await writer.outcome).status).toBe(0);
    await until(() => service.activity.handlers === 0 && app.changes.listeners === 0, 'the follower is cut off');
    slow.stream.resume();
    expect((await slow.outcome).reset).toBe(0xb);
    writing.destroy();
    following.destroy();
    await port.drain(0);
    await app.close();
    await store.close();
  });
});
