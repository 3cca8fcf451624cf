import { randomBytes, randomInt, randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  type AnabranchClient,
  connectClient,
  downloadState,
  errorMetadata,
  openWriter,
  readSteps,
  readTrajectories,
  reasonOf,
  type TrajectoryReadOptions,
  uploadState,
} from '../../src/client/index.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

/** A step that contains its own number, so that a reader can check it. */
const numbered = (n: bigint | number) => ({
  reward: Number(n),
  actions: [{ type: 'key', content: { text: `action ${n}` } }],
  info: { n: Number(n) },
});

describe.each(ENGINES)('the client against the real server on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let proxy: TcpProxy;
  let client: AnabranchClient;
  let trajectoryId: string;

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    server = await startTestServer({ database });
  });
  afterAll(async () => {
    await server.stop();
    await database.drop();
  });
  beforeEach(async () => {
    proxy = await startTcpProxy({ host: '127.0.0.1', port: server.port });
    client = connectClient({ address: proxy.url });
    trajectoryId = randomUUID();
    await client.trajectories.createTrajectory({ trajectoryId });
  });
  afterEach(async () => {
    client.close();
    await proxy.close();
  });

  async function stored(): Promise<number[]> {
    const rewards: number[] = [];
    for await (const { step } of readSteps(client, { trajectoryId })) {
      expect(step.infoJson).toBe(`{"n":${step.reward}}`);
      rewards.push(step.reward ?? Number.NaN);
    }
    return rewards;
  }

  const upTo = (count: number) => Array.from({ length: count }, (_, i) => i);

  it('RD6, RD7: reads trajectories with their steps and states, also if connections break', async () => {
    const [taskId, bytes] = [randomUUID(), Buffer.alloc(100_000, 'x')];
    const ids = [randomUUID(), randomUUID(), randomUUID()];
    for (const id of ids) {
      await client.trajectories.createTrajectory({ trajectoryId: id, taskId });
      const writer = await openWriter(client, { trajectoryId: id });
      for (let n = 0; n < 5; n += 1) {
        const states = { env: { data: Buffer.concat([bytes, Buffer.from(`${id} ${n}`)]), mediaType: 'text/plain' } };
        await writer.append({ ...numbered(n), states });
      }
      await writer.close();
    }
    const found: string[] = [];
    for await (const { trajectory, steps, blobs } of readTrajectories(client, { taskId, inlineBytes: 131_072 })) {
      if (found.length === 1) proxy.cut();
      found.push(trajectory.id);
      expect(steps.map(({ reward }) => reward)).toEqual([0, 1, 2, 3, 4]);
      for (const { stepNumber, states } of steps) {
        const data = Buffer.from(blobs.get(states[0]!.digest)!);
        expect(data.toString('latin1', bytes.length)).toBe(`${trajectory.id} ${stepNumber}`);
      }
    }
    expect(found).toEqual(ids);
  });

  it('RD6: selects trajectories by name, labels of steps, part and order of ids', async () => {
    const taskId = randomUUID();
    const ids: string[] = [];
    for (const [name, phase] of [['a', 'reach'] as const, ['a', 'grasp'] as const, ['b', 'reach'] as const]) {
      ids.push(randomUUID());
      const create = { trajectory: { taskId, name } };
      await using writer = await openWriter(client, { trajectoryId: ids.at(-1)!, create });
      await writer.append({ ...numbered(0), labels: { phase } });
    }
    const read = async (options: TrajectoryReadOptions) => {
      const found: string[] = [];
      for await (const { trajectory } of readTrajectories(client, { taskId, ...options })) found.push(trajectory.id);
      return found;
    };
    expect(await read({ name: 'a' })).toEqual(ids.slice(0, 2));
    expect(await read({ stepLabels: { phase: 'reach' } })).toEqual([ids[0], ids[2]]);
    const backward = ids.toReversed();
    expect(await read({ trajectoryIds: backward, order: TrajectoryOrder.REQUESTED })).toEqual(backward);
    const parts = [await read({ shard: { index: 0, count: 2 } }), await read({ shard: { index: 1, count: 2 } })];
    expect(parts.flat().toSorted()).toEqual(ids.toSorted());
  });

  it('R1: acked steps are read back, in order', async () => {
    const writer = await openWriter(client, { trajectoryId });
    for (let n = 0; n < 20; n += 1) expect((await writer.append(numbered(n))).stepNumber).toBe(BigInt(n));
    const more = upTo(500).slice(20);
    await Promise.all(more.map((n) => writer.append(numbered(n))));
    expect(await stored()).toEqual(upTo(500));
    await writer.close();
  });

  it('W12: with cuts at random bytes in both directions, the writer replays and every step is stored once, in order', async () => {
    let opens = 0;
    const writer = await openWriter(client, {
      trajectoryId,
      onEvent: ({ type }) => (opens += type === 'opened' ? 1 : 0),
    });
    let n = 0;
    for (const direction of ['toServer', 'toClient', 'toServer', 'toClient', 'toServer', 'toClient'] as const) {
      let whole = true;
      const cut = proxy.cutAfter(randomInt(1, direction === 'toServer' ? 20_000 : 300), direction).then(() => {
        whole = false;
      });
      while (whole) {
        for (const until = n + 50; n < until; n += 1) void writer.append(numbered(n));
        await writer.flush();
      }
      await cut;
    }
    await writer.flush();
    expect(writer.ackedNextStepNumber).toBe(BigInt(n));
    expect(await stored()).toEqual(upTo(n));
    expect(opens).toBeGreaterThan(3);
    await writer.close();
  });

  it('W12: late bytes of a dead connection fence no writer permanently and store nothing twice', async () => {
    const writer = await openWriter(client, { trajectoryId });
    await writer.append(numbered(0));
    proxy.hold();
    const late = [1, 2, 3].map((n) => writer.append(numbered(n)));
    await new Promise((resolve) => setImmediate(resolve));
    proxy.cutClients();
    await proxy.release();
    await Promise.all(late);
    await writer.append(numbered(4));
    expect(await stored()).toEqual(upTo(5));
    await writer.close();
  });

  it('F1, W12: a second writer takes over; the first is fenced permanently, and its error names the second', async () => {
    const first = await openWriter(client, { trajectoryId });
    await first.append(numbered(0));
    const second = await openWriter(client, { trajectoryId });
    expect(second.nextStepNumber).toBe(1n);
    expect(second.epoch).toBeGreaterThan(first.epoch);
    await second.append(numbered(1));
    const error = await first.append({ reward: 99 }).catch((e: unknown) => e);
    expect(reasonOf(error)).toBe('WRITER_FENCED');
    expect(errorMetadata(error)).toMatchObject({ writer_id: second.writerId, writer_epoch: String(second.epoch) });
    expect(await openWriter(client, { trajectoryId, takeOver: false }).catch(reasonOf)).toBe('WRITER_FENCED');
    await second.append(numbered(2));
    expect(await stored()).toEqual([0, 1, 2]);
    await second.close();
  });

  it('W1: a trajectory with another end than expected is not opened', async () => {
    const error = await openWriter(client, { trajectoryId, expectedNextStepNumber: 3n }).catch((e: unknown) => e);
    expect(reasonOf(error)).toBe('UNEXPECTED_POSITION');
    expect(errorMetadata(error)).toMatchObject({ next_step_number: '0' });
  });

  it('B3: a writer of a deleted trajectory gets NOT_FOUND, even if the id was created again', async () => {
    const writer = await openWriter(client, { trajectoryId });
    await writer.append(numbered(0));
    await client.trajectories.deleteTrajectory({ trajectoryId });
    await client.trajectories.createTrajectory({ trajectoryId });
    expect(await writer.append(numbered(1)).catch(reasonOf)).toBe('TRAJECTORY_NOT_FOUND');
    expect(await stored()).toEqual([]);
  });

  it('W5: seals, and a sealed trajectory accepts no more steps', async () => {
    const writer = await openWriter(client, { trajectoryId });
    void writer.append(numbered(0));
    const sealed = await writer.seal(Status.COMPLETED, 'done');
    expect(sealed).toMatchObject({ status: Status.COMPLETED, message: 'done', nextStepNumber: 1n });
    expect(sealed.sealTime).toBeInstanceOf(Date);
    const late = await openWriter(client, { trajectoryId });
    expect(late.status).toBe(Status.COMPLETED);
    expect(await late.append(numbered(1)).catch(reasonOf)).toBe('TRAJECTORY_SEALED');
  });

  it('W9, S4: a state over 512 KiB and an image are uploaded separately, and read back byte for byte', async () => {
    const env = randomBytes(1024 * 1024 + 1);
    const picture = new Uint8Array(700 * 1024).fill(9);
    const writer = await openWriter(client, { trajectoryId });
    await writer.append({
      observations: [{ type: 'screenshot', content: { data: picture, mediaType: 'image/png' } }],
      states: { env, agent: { data: new Uint8Array([1]), mediaType: 'application/json' } },
    });
    const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: 0n });
    expect(step?.states.map((state) => [state.name, state.mediaType, state.size])).toEqual([
      ['agent', 'application/json', 1n],
      ['env', '', BigInt(env.byteLength)],
    ]);
    const digests = [step?.states[1]?.digest, step?.observations[0]?.content?.stateDigest];
    const [gotEnv, gotPicture] = await Promise.all(digests.map((digest) => downloadState(client, digest ?? '')));
    expect(Buffer.from(gotEnv ?? []).equals(env)).toBe(true);
    expect(Buffer.from(gotPicture ?? []).equals(picture)).toBe(true);
    await writer.close();
  });

  it('S4: states are uploaded and downloaded across cuts', async () => {
    const bytes = randomBytes(1024 * 1024);
    const cutPut = proxy.cutAfter(500_000, 'toServer');
    const digest = await uploadState(client, bytes);
    await cutPut;
    const cutGet = proxy.cutAfter(700_000, 'toClient');
    expect(Buffer.from(await downloadState(client, digest)).equals(bytes)).toBe(true);
    await cutGet;
  });

  it('R2: a follower delivers every step once, in order, across cuts, and ends at the seal', async () => {
    const got: number[] = [];
    const following = (async () => {
      for await (const { step } of readSteps(client, { trajectoryId, follow: true }))
        got.push(step.reward ?? Number.NaN);
    })();
    // The writer bypasses the proxy: only the reader's connection is cut.
    const direct = connectClient({ address: server.url });
    const writer = await openWriter(direct, { trajectoryId });
    for (let n = 0; n < 750; n += 1) {
      void writer.append(numbered(n));
      if (n % 150 !== 149) continue;
      const cut = proxy.cutAfter(randomInt(1, 4000), 'toClient');
      await writer.flush();
      await cut;
    }
    await writer.seal(Status.COMPLETED);
    await following;
    expect(got).toEqual(upTo(750));
    direct.close();
  });

  it('A2: a drained server is left without losing a step, and the writer continues at its successor', async () => {
    const writer = await openWriter(client, { trajectoryId });
    const appended: Promise<unknown>[] = [];
    let stop = false;
    const writing = (async () => {
      for (let n = 0; !stop; n += 1) {
        appended.push(writer.append(numbered(n)));
        if (n % 50 === 0) await writer.flush();
      }
    })();
    await appended[0];
    await server.drain();
    server = await startTestServer({ database });
    proxy.retarget({ host: '127.0.0.1', port: server.port });
    const opened = writer.epoch;
    await expect.poll(() => writer.epoch, { timeout: 20_000 }).toBeGreaterThan(opened);
    stop = true;
    await writing;
    await writer.flush();
    expect(await stored()).toEqual(upTo(appended.length));
    await writer.close();
  });

  it('a refused step is reported with its reason; steps appended before it are stored', async () => {
    const writer = await openWriter(client, { trajectoryId });
    const [good, bad] = [writer.append(numbered(0)), writer.append({ infoJson: '{not json' })];
    expect(await good).toMatchObject({ stepNumber: 0n });
    expect(await bad?.catch(reasonOf)).toBe('INVALID_REQUEST');
    expect(await stored()).toEqual([0]);
  });
});
