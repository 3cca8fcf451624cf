import type { MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { WatchRequestSchema, WatchResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';
import { collect } from './story.ts';

type Subjects = NonNullable<MessageInitShape<typeof WatchRequestSchema>['subjects']>;

const PAGE = { runs: {} };

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

  it('M5: sends what each subject sends, and continues with the others when one fails or ends', async () => {
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'tree' });
    const { run } = await client.runs.createRun({ name: 'run', initialStatus: Status.RUNNING });
    const { run: deleted } = await client.runs.createRun({ name: 'deleted' });
    const [trajectoryId, runId, deletedId] = [trajectory!.id, run!.id, deleted!.id];
    const leaving = new AbortController();
    const subjects: Subjects = {
      tree: { tree: { treeId: trajectoryId.toUpperCase() } },
      run: { run: { runId, untilTerminal: true } },
      page: { runs: { pageSize: 10 } },
      deleted: { run: { runId: deletedId } },
      missing: { tree: { treeId: runId } },
      'no id': { run: { runId: 'nonsense' } },
      'no text': { runs: { text: '\0' } },
      nothing: {},
      two: { run: { runId }, runs: {} },
    };
    const call = client.server.watch({ subjects }, { signal: leaving.signal });
    const told = new Map<string, WatchResponse[]>();
    const messages = call[Symbol.asyncIterator]();
    const until = async (done: () => boolean) => {
      while (!done()) {
        const { value } = await messages.next();
        told.set(value.name, [...(told.get(value.name) ?? []), value]);
      }
    };
    const last = (name: string) => told.get(name)?.at(-1);
    const tree = () => (told.get('tree') ?? []).flatMap((response) => response.tree?.nodes ?? []);
    await until(() => Object.keys(subjects).every((name) => told.has(name)));
    const failed = ['missing', 'no id', 'no text', 'nothing', 'two'].map((name) => last(name)?.error);
    const [missing, ...invalid] = failed;
    const metadata = { trajectory_id: runId };
    expect(missing).toMatchObject({ reason: 'TRAJECTORY_NOT_FOUND', field: 'tree.tree_id', metadata });
    expect(invalid.map((error) => error?.reason)).toEqual(Array(4).fill('INVALID_REQUEST'));
    expect(invalid.slice(0, 2)).toMatchObject([{ field: 'run.run_id' }, { field: 'runs.text' }]);
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n, reward: 3 } });
    await until(() => tree().at(-1)?.trajectory?.rewardSum === 3);
    await client.runs.deleteRun({ runId: deletedId });
    await until(() => last('deleted')?.error !== undefined);
    expect(last('deleted')?.error).toMatchObject({ reason: 'RUN_DELETED', metadata: { run_id: deletedId } });
    await client.runs.failRun({ runId });
    await until(() => last('run')?.run?.run?.status === Status.FAILED);
    await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 1n, reward: 4 } });
    await until(() => tree().at(-1)?.trajectory?.rewardSum === 7);
    expect(Object.values(subjects)).toHaveLength(told.size);
    leaving.abort();
    await expect(messages.next()).rejects.toThrow();
  });

  it('M5: ends when all subjects have ended, also if all have failed', async () => {
    const { run } = await client.runs.createRun({ initialStatus: Status.RUNNING });
    const ending = { run: { runId: run!.id, untilTerminal: true } };
    await client.runs.failRun({ runId: run!.id });
    const told = await collect(client.server.watch({ subjects: { one: ending, other: ending } }));
    expect(told.map(({ name, caughtUp }) => `${name} ${caughtUp}`).sort()).toEqual(['one true', 'other true']);
    const failed = await collect(client.server.watch({ subjects: { it: { tree: { treeId: run!.id } } } }));
    expect(failed).toMatchObject([{ name: 'it', error: { reason: 'TRAJECTORY_NOT_FOUND' } }]);
  });

  it('A2: ends with SERVER_DRAINING as a whole', async () => {
    const draining = await startTestServer({ engine });
    const own = connectClient({ address: draining.url });
    const messages = own.server.watch({ subjects: { one: PAGE, other: PAGE } })[Symbol.asyncIterator]();
    await messages.next();
    const drained = draining.stop();
    const ended = async () => {
      for (;;) if ((await messages.next()).done === true) return undefined;
    };
    expect(await ended().catch(reasonOf)).toBe('SERVER_DRAINING');
    own.close();
    await drained;
  });

  const many = (count: number): Subjects => Object.fromEntries(Array.from({ length: count }, (_, i) => [`${i}`, PAGE]));

  it('takes 64 subjects, and names of 64 bytes', async () => {
    const leaving = new AbortController();
    const named = { ...many(63), ['ü'.repeat(32)]: PAGE };
    const caughtUp = new Set<string>();
    for await (const { name } of client.server.watch({ subjects: named }, { signal: leaving.signal })) {
      caughtUp.add(name);
      if (caughtUp.size === 64) break;
    }
    expect([...caughtUp].sort()).toEqual(Object.keys(named).sort());
  });

  it.each<[string, Subjects]>([
    ['no subject', {}],
    ['65 subjects', many(65)],
    ['a subject without a name', { '': PAGE }],
    ['a name of 65 bytes', { ['n'.repeat(65)]: PAGE }],
    ['U+0000 in a name', { 'a\0b': PAGE }],
  ])('refuses %s', async (_what, subjects) => {
    expect(await collect(client.server.watch({ subjects })).catch(reasonOf)).toBe('INVALID_REQUEST');
  });
});
