import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { VERSION } from '../../gen/es/anabranch/v1/limits.js';
import type { AppendStepsRequest } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient, openMetricLogger, openWriter } from '../../src/client/index.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { startTestServer } from '../support/test-server.ts';
import { connected } from './connected.ts';
import { obliging, TRAJECTORY } from './scripted-peer.ts';

describe('limits of the TypeScript client', () => {
  it('are those of its version, and connect sends nothing, until the first call', async () => {
    let asked = 0;
    const getServerInfo = () => {
      asked += 1;
      return {};
    };
    const { client, peer } = await connected({ server: { getServerInfo } });
    expect(client.limits.current).toEqual(LIMITS);
    expect([asked, peer.connections]).toEqual([0, 0]);
  });

  it('are those of a real server after the first call', async () => {
    await using server = await startTestServer({ flags: { maxConnections: '77' } });
    const client = connectClient({ address: server.url });
    await client.trajectories.listTrajectories({});
    expect(client.limits.current).toMatchObject({ ...LIMITS, maxConnections: 77 });
    client.close();
  });

  it('a writer obeys those of the server, and one call serves all writers of a client', async () => {
    let asked = 0;
    const frames: AppendStepsRequest[] = [];
    const chunks: number[] = [];
    const { client } = await connected({
      append: [obliging(1n, 0n, frames), obliging(2n, 0n)],
      server: {
        getServerInfo: () => {
          asked += 1;
          return { version: VERSION, limits: { stepBytes: 3000n, inlineStateBytes: 2000n, chunkBytes: 1000n } };
        },
      },
      states: {
        hasStates: () => ({}),
        putState: async (requests) => {
          for await (const { chunk } of requests) chunks.push(chunk.byteLength);
          return {};
        },
      },
    });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    await writer.append({ states: { env: new Uint8Array(2500) } });
    expect(chunks).toEqual([1000, 1000, 500]);
    const [state] = frames[0]?.steps[0]?.states ?? [];
    expect([state?.data, state?.digest]).toEqual([undefined, expect.stringMatching(/^\w{64}$/)]);
    await expect(writer.append({ infoJson: JSON.stringify('x'.repeat(3000)) })).rejects.toThrow(
      'expected at most 3000;',
    );
    frames.length = 0;
    await Promise.all([1, 2, 3].map(() => writer.append({ infoJson: JSON.stringify('x'.repeat(1400)) })));
    expect(frames.map(({ steps }) => steps.length)).toEqual([2, 1]);
    await writer.close();
    await (await openWriter(client, { trajectoryId: TRAJECTORY })).close();
    expect(asked).toBe(1);
  });

  it('a metric logger obeys those of the server', async () => {
    const calls: number[] = [];
    const { client } = await connected({
      server: { getServerInfo: () => ({ version: VERSION, limits: { metricPoints: 2n, seriesNameBytes: 3n } }) },
      runs: {
        logMetrics: ({ points }) => {
          calls.push(points.length);
          return {};
        },
      },
    });
    const logger = openMetricLogger(client, { runId: TRAJECTORY });
    for (let step = 0; step < 5; step += 1) logger.log('key', step, 1);
    await logger.flush();
    expect(calls).toEqual([2, 2, 1]);
    expect(() => logger.log('keys', 6, 1)).toThrow('has 4 bytes: expected 1 to 3 bytes');
    await logger.close();
  });

  it('streams spread over connections by the limit of the server', async () => {
    const { client, peer } = await connected({
      append: [obliging(1n, 0n), obliging(2n, 0n), obliging(3n, 0n)],
      server: { getServerInfo: () => ({ version: VERSION, limits: { streamsPerConnection: 12n } }) },
    });
    const writers = [await openWriter(client, { trajectoryId: TRAJECTORY })];
    for (let i = 0; i < 2; i += 1) writers.push(await openWriter(client, { trajectoryId: TRAJECTORY }));
    expect(peer.connections).toBe(2);
    await Promise.all(writers.map((writer) => writer.close()));
  });

  it('a server that could not answer is asked again by the next call', async () => {
    let starting = true;
    const getServerInfo = () => {
      if (starting) throw new ConnectError('starting', Code.Unavailable);
      return { version: VERSION, limits: { stepBytes: 3000n } };
    };
    const { client, peer } = await connected({ append: [obliging(1n, 0n)], server: { getServerInfo } });
    await expect(client.limits.load()).rejects.toThrow('starting');
    await expect(openWriter(client, { trajectoryId: TRAJECTORY, giveUpAfterMs: 1 })).rejects.toThrow('starting');
    expect([client.limits.current, peer.opens]).toEqual([LIMITS, []]);
    starting = false;
    await (await openWriter(client, { trajectoryId: TRAJECTORY })).close();
    expect(client.limits.current).toEqual({ ...LIMITS, stepBytes: 3000 });
  });
});
