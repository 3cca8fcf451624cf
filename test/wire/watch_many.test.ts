import {
  create,
  type DescMethodServerStreaming,
  fromBinary,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { WatchResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';

const { watchRun, watchRuns } = RunService.method;
const { watchTree } = TrajectoryService.method;

function watchOf<M extends DescMethodServerStreaming>(method: M, request: MessageInitShape<M['input']>) {
  const path = `${method.parent.typeName}/${method.name}`;
  return { method: path, request: toBinary(method.input, create(method.input, request)) };
}

describe.each(ENGINES)('Watch, on %s', (engine) => {
  let client: AnabranchClient;
  const closing = new AsyncDisposableStack();
  beforeAll(async () => {
    const database = closing.use(await createMigratedDatabase(engine));
    const server = closing.use(await startTestServer({ database }));
    client = connectClient({ address: server.url });
    closing.defer(() => client.close());
  });
  afterAll(() => closing.disposeAsync());

  it('M5: sends what each watch sends, and continues with the others when one fails or ends', async () => {
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'tree' });
    const { run } = await client.runs.createRun({ name: 'run', initialStatus: Status.RUNNING });
    const [trajectoryId, runId] = [trajectory!.id, run!.id];
    const leaving = new AbortController();
    const call = client.server.watch(
      {
        watches: [
          watchOf(watchTree, { treeId: trajectoryId }),
          watchOf(watchTree, { treeId: runId }),
          watchOf(watchRun, { runId, untilTerminal: true }),
          watchOf(watchRuns, { list: { pageSize: 10 } }),
          watchOf(watchRun, { runId: 'nonsense' }),
          watchOf(watchRuns, { list: { text: '\0' } }),
          { method: 'anabranch.v1.RunService/WatchRun', request: Buffer.from('no message') },
        ],
      },
      { signal: leaving.signal },
    );
    const told = new Map<number, WatchResponse[]>();
    const messages = call[Symbol.asyncIterator]();
    const until = async (done: () => boolean) => {
      while (!done()) {
        const { value } = await messages.next();
        told.set(value.watch, [...(told.get(value.watch) ?? []), value]);
      }
    };
    const last = (watch: number) => told.get(watch)?.at(-1);
    const tree = () => (told.get(0) ?? []).flatMap(({ response }) => fromBinary(watchTree.output, response).nodes);
    await until(() => [1, 4, 5, 6].every((watch) => last(watch)?.error !== undefined) && told.has(3) && told.has(2));
    expect([1, 4, 5, 6].map((watch) => last(watch)?.error?.reason)).toEqual([
      'TRAJECTORY_NOT_FOUND',
      ...Array(3).fill('INVALID_REQUEST'),
    ]);
    expect(last(4)?.error).toMatchObject({ field: 'run_id' });
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n, reward: 3 } });
    await until(() => tree().at(-1)?.trajectory?.rewardSum === 3);
    await client.runs.failRun({ runId });
    const failed = () => fromBinary(watchRun.output, last(2)!.response).run?.status === Status.FAILED;
    await until(failed);
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 1n, reward: 4 } });
    await until(() => tree().at(-1)?.trajectory?.rewardSum === 7);
    leaving.abort();
    await expect(messages.next()).rejects.toThrow();
  });

  it('ends when all watches have ended', async () => {
    const { run } = await client.runs.createRun({ initialStatus: Status.RUNNING });
    const request = { runId: run!.id, untilTerminal: true };
    await client.runs.failRun({ runId: run!.id });
    const watches: number[] = [];
    for await (const { watch } of client.server.watch({
      watches: [watchOf(watchRun, request), watchOf(watchRun, request)],
    }))
      watches.push(watch);
    expect(new Set(watches)).toEqual(new Set([0, 1]));
  });

  it('A2: ends with SERVER_DRAINING as a whole', async () => {
    const draining = await startTestServer({ engine });
    const own = connectClient({ address: draining.url });
    const call = own.server.watch({ watches: [watchOf(watchRuns, { list: {} }), watchOf(watchRuns, { list: {} })] });
    const messages = call[Symbol.asyncIterator]();
    await messages.next();
    const drained = draining.stop();
    const ended = async () => {
      for (;;) if ((await messages.next()).done === true) return undefined;
    };
    expect(await ended().catch(reasonOf)).toBe('SERVER_DRAINING');
    own.close();
    await drained;
  });

  it.each([
    ['no watch', []],
    ['65 watches', Array(65).fill(watchOf(watchRuns, { list: {} }))],
    ['another method', [{ method: 'anabranch.v1.RunService/ListRuns' }]],
    ['a large request', [{ method: 'anabranch.v1.RunService/WatchRun', request: new Uint8Array(16_385) }]],
  ])('refuses %s', async (_what, watches) => {
    const refused = async () => {
      for await (const _ of client.server.watch({ watches }));
    };
    expect(await refused().catch(reasonOf)).toBe('INVALID_REQUEST');
  });
});
