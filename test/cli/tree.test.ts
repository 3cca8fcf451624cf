import { stripVTControlCharacters } from 'node:util';
import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  GetTreeResponseSchema,
  ListTrajectoriesResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, HASTY, LATE, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { runCli, withoutPageLink } from './run_cli.ts';

describe.each(ENGINES)('anabranch tree, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('says what to do if there are no trajectories yet', async () => {
    const { code, stdout } = await runCli(['tree', ...at]);
    expect(code).toBe(0);
    expect(stdout).toBe(
      `No trajectories yet. \`npm run -s anabranch -- demo --address ${server.url}\` creates some.\n`,
    );
  });

  describe('with a tree', () => {
    beforeAll(() => plantTree(client));

    /** Returns what is drawn on a terminal, without the link to the page below. */
    async function onTerminal(env: Readonly<Record<string, string>> = {}): Promise<string> {
      const { stdout } = await runCli(['tree', MAIN_LINE, ...at], { terminal: true, env });
      return withoutPageLink(stdout, `${server.url}/trees/${MAIN_LINE}`);
    }

    it('draws it in 80 columns, without colours if there is no terminal', async () => {
      const { code, stdout, stderr } = await runCli(['tree', MAIN_LINE, ...at]);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      await expect(stdout).toMatchFileSnapshot('golden/tree.txt');
    });

    it('draws it with colours on a terminal', async () => {
      const stdout = await onTerminal();
      await expect(stdout).toMatchFileSnapshot('golden/tree.terminal.txt');
      expect(stripVTControlCharacters(stdout)).toBe((await runCli(['tree', MAIN_LINE, ...at])).stdout);
    });

    it('draws it with bars', async () => {
      const { stdout } = await runCli(['tree', MAIN_LINE, '--bars', ...at]);
      await expect(stdout).toMatchFileSnapshot('golden/tree.bars.txt');
    });

    it('respects NO_COLOR on a terminal', async () => {
      const stdout = await onTerminal({ NO_COLOR: '1' });
      expect(stdout).toBe((await runCli(['tree', MAIN_LINE, ...at])).stdout);
    });

    it.each([GENTLE, HASTY, LATE, `${LATE}@12`, `${MAIN_LINE}@fork`])('finds the whole tree by %s', async (place) => {
      expect((await runCli(['tree', place, ...at])).stdout).toBe((await runCli(['tree', MAIN_LINE, ...at])).stdout);
    });

    it('--json prints the answer of GetTree', async () => {
      const { stdout } = await runCli(['tree', HASTY, '--json', ...at]);
      const { nodes } = fromJsonString(GetTreeResponseSchema, stdout);
      expect(nodes.map(({ trajectory }) => trajectory?.id)).toEqual([MAIN_LINE, GENTLE, HASTY, LATE]);
    });

    it('without an argument lists the roots, newest first', async () => {
      await client.trajectories.createTrajectory({ trajectoryId: treeId(9), name: 'younger' });
      const { stdout } = await runCli(['tree', ...at]);
      expect(stdout.split('\n').map((line) => line.slice(0, 10).trim())).toEqual([
        'trajectory',
        'younger',
        'main line',
        '',
      ]);
      const json = fromJsonString(ListTrajectoriesResponseSchema, (await runCli(['tree', '--json', ...at])).stdout);
      expect(json.trajectories.map(({ id }) => id)).toEqual([treeId(9), MAIN_LINE]);
    });

    it('says that there are more roots than it lists', async () => {
      const { stdout } = await runCli(['tree', '--limit', '1', ...at]);
      expect(stdout).toContain('younger');
      expect(stdout).not.toContain('main line');
      expect(stdout).toContain('The newest 1; --limit N (up to 1000) lists more.');
    });

    it('draws a deleted trajectory whose steps its branches still need', async () => {
      await client.trajectories.deleteTrajectory({ trajectoryId: GENTLE, onBranches: 3 });
      const { stdout } = await runCli(['tree', LATE, ...at]);
      expect(stdout).toMatch(/├─@10 gentle .* deleted\n│ └─@20 late/);
    });
  });
});

describe('a large tree', () => {
  it('draws every page of a large tree', async () => {
    await using server = await startTestServer();
    const client = connectClient({ address: server.url });
    const root = treeId(100);
    await client.trajectories.createTrajectory({ trajectoryId: root, root: { stepNumber: 0n } });
    const names = Array.from({ length: 1003 }, (_, i) => `branch ${i}`);
    for (let from = 0; from < names.length; from += 50) {
      const some = names.slice(from, from + 50);
      await Promise.all(
        some.map((name) => client.trajectories.branchTrajectory({ trajectoryId: root, stepNumber: 0n, name })),
      );
    }
    const { stdout } = await runCli(['tree', root, '--address', server.url]);
    client.close();
    const drawn = stdout.split('\n').map((line) => /branch \d+/.exec(line)?.[0]);
    expect(drawn.filter((name) => name !== undefined).sort()).toEqual(names.sort());
  });
});
