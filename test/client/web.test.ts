/** Tests the client for browsers on Node, which has the same fetch(). `npm run test:package` runs it in Chromium. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { create, toBinary } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { rolldown } from 'rolldown';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { VERSION } from '../../gen/es/anabranch/v1/limits.js';
import { GetServerInfoResponseSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { connectClient as connectNodeClient } from '../../src/client/index.ts';
import { isTransient } from '../../src/client/retry.ts';
import {
  type AnabranchClient,
  connectClient,
  errorMetadata,
  parseStepReference,
  readSteps,
  reasonOf,
  resolveStep,
  watchRun,
} from '../../src/client/web/index.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { collect } from '../wire/story.ts';

const ENTRY = path.resolve(import.meta.dirname, '../../src/client/web/index.ts');

let server: TestServer;
let client: AnabranchClient;
beforeAll(async () => {
  server = await startTestServer();
  client = connectClient({ address: server.url });
});
afterAll(() => server.stop());

async function trajectoryOf(steps: number): Promise<string> {
  const { trajectory } = await client.trajectories.createTrajectory({});
  const trajectoryId = trajectory!.id;
  for (let n = 0; n < steps; n += 1) {
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: BigInt(n), reward: n } });
  }
  return trajectoryId;
}

async function numbers(steps: ReturnType<typeof readSteps>): Promise<number[]> {
  const found: number[] = [];
  for await (const { step } of steps) found.push(Number(step.stepNumber));
  return found;
}

/** Returns the error of a call. */
async function refused(call: Promise<unknown>): Promise<unknown> {
  return await call.then(
    () => expect.unreachable(),
    (error: unknown) => error,
  );
}

describe('the modules of anabranch/client/web', () => {
  it('C2: import nothing of Node, including the generated code and the packages', async () => {
    const bundle = await rolldown({ input: ENTRY, platform: 'browser', logLevel: 'silent' });
    const { output } = await bundle.generate({ format: 'esm' });
    await bundle.close();
    const [chunk] = output;
    expect(output).toHaveLength(1);
    expect([...chunk.imports, ...chunk.dynamicImports]).toEqual([]);
    const modules = chunk.moduleIds.join('\n');
    for (const part of [
      'src/client/reader.ts',
      'gen/es/anabranch/v1/run_pb.js',
      '@connectrpc/connect-web',
      '@bufbuild/protobuf',
    ]) {
      expect(modules).toContain(part);
    }
    expect(modules).not.toMatch(/node:|connect-node|src\/client\/step\.ts|src\/domain/);
  });
});

describe('the client for browsers', () => {
  it('C2: writes with unary calls, and reads every step in order', async () => {
    const trajectoryId = await trajectoryOf(3);
    expect(await numbers(readSteps(client, { trajectoryId }))).toEqual([0, 1, 2]);
    await client.trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 1n });
    expect(await resolveStep(client, parseStepReference(`${trajectoryId}@best`))).toBe(1n);
  });

  it('C2, R2: follows over a connection that is cut twice, until the seal', async () => {
    const trajectoryId = await trajectoryOf(50);
    const proxy = await startTcpProxy({ host: server.host, port: server.port });
    const through = connectClient({ address: proxy.url });
    const found: number[] = [];
    for await (const { step } of readSteps(through, { trajectoryId, follow: true, giveUpAfterMs: 60_000 })) {
      found.push(Number(step.stepNumber));
      if (found.length === 20 || found.length === 50) proxy.cut();
      if (found.length === 50) {
        await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 50n } });
        await client.trajectories.sealTrajectory({ trajectoryId, seal: { status: Status.COMPLETED } });
      }
    }
    expect(found).toEqual(Array.from({ length: 51 }, (_, n) => n));
    await proxy.close();
  });

  it('C2, M5: watches a run until it ends', async () => {
    const { run } = await client.runs.createRun({ initialStatus: Status.RUNNING });
    const runId = run!.id;
    const seen: Status[] = [];
    for await (const { run } of watchRun(client, { runId, untilTerminal: true })) {
      if (seen.length === 0) await client.runs.completeRun({ runId });
      seen.push(run.status);
    }
    expect(seen[0]).toBe(Status.RUNNING);
    expect(seen.at(-1)).toBe(Status.COMPLETED);
  });

  it('C2: errors of unary calls and of streams have their reason and metadata', async () => {
    const missing = crypto.randomUUID();
    const unary = await refused(client.trajectories.getTrajectory({ trajectoryId: missing }));
    expect(reasonOf(unary)).toBe('TRAJECTORY_NOT_FOUND');
    const stream = await refused(numbers(readSteps(client, { trajectoryId: missing })));
    expect(reasonOf(stream)).toBe('TRAJECTORY_NOT_FOUND');
    const trajectoryId = await trajectoryOf(1);
    const gap = await refused(client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 2n } }));
    expect(reasonOf(gap)).toBe('STEP_GAP');
    expect(errorMetadata(gap)).toMatchObject({ next_step_number: '1' });
  });

  it('C2: an answer that ends within a message is transient', async () => {
    const tenBytesOfWhichThreeArrive = Buffer.from([0, 0, 0, 0, 10, 1, 2, 3]);
    const peer = createServer((request, response) => {
      request.resume();
      if (request.url?.endsWith('/GetServerInfo') === true) {
        response.writeHead(200, { 'content-type': 'application/proto' });
        response.end(toBinary(GetServerInfoResponseSchema, create(GetServerInfoResponseSchema, { version: VERSION })));
        return;
      }
      response.writeHead(200, { 'content-type': 'application/connect+proto' });
      response.end(tenBytesOfWhichThreeArrive);
    });
    peer.listen(0, '127.0.0.1');
    await once(peer, 'listening');
    const { port } = peer.address() as AddressInfo;
    const cut = connectClient({ address: `127.0.0.1:${port}` });
    const error = await refused(collect(cut.trajectories.readSteps({})));
    peer.close();
    expect(error).toMatchObject({ code: Code.Unavailable });
    expect(isTransient(error)).toBe(true);
  });

  it('C2: unary calls have a deadline of one minute, which timeoutMs replaces; streams have none', async () => {
    const asked: (string | null)[] = [];
    const noting = connectClient({
      address: server.url,
      interceptors: [
        (next) => async (request) => {
          asked.push(request.header.get('connect-timeout-ms'));
          return await next(request);
        },
      ],
    });
    const trajectoryId = await trajectoryOf(1);
    await noting.trajectories.getTrajectory({ trajectoryId });
    await noting.trajectories.getTrajectory({ trajectoryId }, { timeoutMs: 5_000 });
    expect(await numbers(readSteps(noting, { trajectoryId }))).toEqual([0]);
    // The first call is preceded by GetServerInfo.
    expect(asked).toEqual(['60000', '60000', '5000', null]);
  });

  it('accepts the same addresses as the client for Node, and rejects the same', () => {
    for (const address of ['127.0.0.1:50051', 'http://localhost:1', 'https://x.example']) {
      const node = connectNodeClient({ address });
      expect(connectClient({ address }).url).toBe(node.url);
      node.close();
    }
    expect(() => connectClient({ address: 'http://x.example/path' })).toThrow(TypeError);
  });
});
