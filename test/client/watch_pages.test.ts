import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type {
  RunPageChangesSchema,
  TreeChangesSchema,
  WatchRequest,
  WatchResponseSchema,
} from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  type AnabranchClient,
  connectClient,
  watchRuns,
  watchTrajectories,
  watchTree,
} from '../../src/client/index.ts';
import { GENTLE, grow, LATE, MAIN_LINE, plantTree } from '../cli/grove.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { connected } from './connected.ts';

const caughtUp = { caughtUp: true };

type Answer<Changes> = Changes & { readonly caughtUp?: boolean };

/**
 * Sends the messages of one call after the other, with a sign of life before each. Each call is then lost, and the
 * subject of the one after the last is refused.
 */
function calls<Changes extends object>(kind: 'tree' | 'runs', scripts: readonly (readonly Answer<Changes>[])[]) {
  const left = [...scripts];
  return async function* ({ subjects }: WatchRequest): AsyncGenerator<MessageInitShape<typeof WatchResponseSchema>> {
    const [name = ''] = Object.keys(subjects);
    const answers = left.shift();
    if (answers === undefined) {
      yield { name, error: { code: Code.NotFound, reason: 'TRAJECTORY_NOT_FOUND', message: 'TRAJECTORY_NOT_FOUND' } };
      return;
    }
    for (const { caughtUp = false, ...changes } of answers) {
      yield {};
      yield { name, [kind]: changes, caughtUp };
    }
    if (left.length > 0) throw new ConnectError('lost', Code.Unavailable);
  };
}

/** Takes what a watch yields until it is refused. */
async function taken<Picture, Shown>(
  watch: AsyncIterable<Picture>,
  show: (picture: Picture) => Shown,
): Promise<Shown[]> {
  const found: Shown[] = [];
  const take = async () => {
    for await (const picture of watch) found.push(show(picture));
  };
  await expect(take()).rejects.toThrow('TRAJECTORY_NOT_FOUND');
  return found;
}

describe('watchTree', () => {
  const node = (id: string, steps: number) => ({ trajectory: { id, nextStepNumber: BigInt(steps) } });

  async function watched(...scripts: Answer<MessageInitShape<typeof TreeChangesSchema>>[][]) {
    const { client } = await connected({ server: { watch: calls('tree', scripts) } });
    const cuts: unknown[] = [];
    const watch = watchTree(client, { treeId: MAIN_LINE, onCut: (error) => void cuts.push(error) });
    const pictures = await taken(watch, ({ nodes, changed }) => [
      [...nodes.values()].map(({ trajectory }) => `${trajectory?.id}${trajectory?.nextStepNumber}`).join(' '),
      changed.nodes.map(({ trajectory }) => trajectory?.id).join(' '),
      changed.removedIds.join(' '),
    ]);
    return { pictures, cuts: cuts.length };
  }

  it('M5: returns all trajectories when the snapshot is complete, then after each change', async () => {
    const { pictures } = await watched([
      { nodes: [node('a', 1)] },
      { nodes: [node('b', 2)], ...caughtUp },
      caughtUp,
      { nodes: [node('b', 2)], ...caughtUp },
      { nodes: [node('b', 3), node('c', 1)], ...caughtUp },
      { removedIds: ['c', 'unknown'], ...caughtUp },
    ]);
    expect(pictures).toEqual([
      ['a1 b2', 'a b', ''],
      ['a1 b3 c1', 'b c', ''],
      ['a1 b3', '', 'c'],
    ]);
  });

  it('M5: after a reconnect the new snapshot counts, so what was removed meanwhile is removed', async () => {
    const { pictures, cuts } = await watched(
      [{ nodes: [node('a', 1), node('b', 2)], ...caughtUp }],
      [{ nodes: [node('a', 1)] }],
      [{ nodes: [node('a', 1)] }, caughtUp],
      [{ nodes: [node('a', 1), node('c', 9)], ...caughtUp }],
    );
    expect(pictures).toEqual([
      ['a1 b2', 'a b', ''],
      ['a1', '', 'b'],
      ['a1 c9', 'c', ''],
    ]);
    expect(cuts).toBe(4);
  });
});

describe('watchRuns', () => {
  const run = (id: string, revision: number) => ({ run: { id, revision: BigInt(revision) } });

  async function watched(...scripts: Answer<MessageInitShape<typeof RunPageChangesSchema>>[][]) {
    const { client } = await connected({ server: { watch: calls('runs', scripts) } });
    return taken(watchRuns(client), ({ runs, changed }) => [
      runs.map(({ run }) => `${run?.id}${run?.revision}`).join(' '),
      changed.runs.map(({ run }) => run?.id).join(' '),
      changed.page,
    ]);
  }

  it('M5: returns the runs in the order of the page, then again after each change and each reconnect', async () => {
    const pictures = await watched(
      [
        { runs: [run('b', 1), run('a', 1)], page: { runIds: ['b', 'a'] } },
        caughtUp,
        caughtUp,
        { runs: [run('a', 2)], ...caughtUp },
        { runs: [run('c', 1)], page: { runIds: ['c', 'b'] }, ...caughtUp },
        { runs: [run('a', 2)], page: { runIds: ['a', 'c'] }, ...caughtUp },
      ],
      [{ runs: [run('a', 2), run('c', 1)], page: { runIds: ['a', 'c'] }, ...caughtUp }],
      [{ page: { runIds: [] }, ...caughtUp }],
    );
    expect(pictures).toEqual([
      ['b1 a1', 'b a', true],
      ['b1 a2', 'a', false],
      ['c1 b1', 'c', true],
      ['a2 c1', 'a', true],
      ['a2 c1', '', false],
      ['', '', true],
    ]);
  });
});

describe.each(ENGINES)('watches with a server, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    await plantTree(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('M5: watchTree shows steps that were appended to a trajectory of the tree', async () => {
    let pictures = 0;
    for await (const { nodes, changed } of watchTree(client, { treeId: GENTLE })) {
      if (pictures++ === 0) {
        expect([nodes.size, changed.nodes.length]).toEqual([4, 4]);
        await grow(client, LATE, 3, { reward: 1 });
      }
      if (nodes.get(LATE)?.trajectory?.nextStepNumber === 26n) break;
    }
    expect(pictures).toBeGreaterThan(1);
    for await (const { nodes } of watchTree(client, { trajectoryIds: [LATE] })) {
      expect([...nodes.keys()]).toEqual([LATE]);
      break;
    }
  });

  it('M5: watchRuns shows runs that are created and changed', async () => {
    const created = await client.runs.createRun({ name: 'first', initialStatus: Status.RUNNING });
    for await (const { runs } of watchRuns(client, { list: { pageSize: 5 } })) {
      const [newest] = runs;
      if (runs.length === 1) await client.runs.createRun({ name: 'second' });
      if (runs.length === 2 && newest?.run?.name === 'second') break;
    }
    expect(created.run?.name).toBe('first');
  });

  it('M5: watchTrajectories shows trajectories that are created, renamed and grow', async () => {
    const labels = { watched: 'page' };
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'first', labels });
    const seen: string[] = [];
    for await (const { trajectories, changed } of watchTrajectories(client, { list: { labels } })) {
      seen.push(...changed.trajectories.map(({ name }) => name));
      const [newest] = trajectories;
      if (trajectories.length === 1) await client.trajectories.createTrajectory({ name: 'second', labels });
      else if (newest?.name === 'second') {
        const updateMask = { paths: ['name'] };
        await client.trajectories.updateTrajectory({ trajectoryId: newest.id, updateMask, name: 'third' });
      }
      if (newest?.name === 'third') break;
    }
    expect(trajectory?.name).toBe('first');
    expect(seen).toEqual(['first', 'second', 'third']);
  });
});
