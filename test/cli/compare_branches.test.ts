import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CompareBranchesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { grow, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch compare-branches, on %s', (engine) => {
  let server: TestServer;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    const client = connectClient({ address: server.url });
    await plantTree(client);
    for (const [i, rate] of ['0.1', '0.01', '0.1', '0.01', '0.1'].entries()) {
      const branchId = treeId(100 + i);
      const stepNumber = BigInt(2 + (i >> 1));
      const labels = { lr: rate };
      await client.trajectories.branchTrajectory({ trajectoryId: MAIN_LINE, stepNumber, branchId, labels });
      await grow(client, branchId, 2 + i, { reward: rate === '0.1' ? 2 : 0.5 });
    }
    client.close();
  });
  afterAll(() => server?.stop());

  const compare = (...args: string[]) => runCli(['compare-branches', ...args, '--address', server.url]);

  it('prints the mean difference of pairs, its interval and the sign test, then the pairs', async () => {
    const { code, stdout, stderr } = await compare(treeId(100), 'lr', '0.01', '0.1');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await expect(stdout).toMatchFileSnapshot('golden/compare_branches.txt');
    for (const line of stdout.split('\n')) expect(widthOf(line)).toBeLessThanOrEqual(80);
  });

  it.each([
    ['reward-sum', [2.5, 5.5]],
    ['reward-mean', [1.5, 1.5]],
    ['steps', [-1, -1]],
  ])('--json prints the response, and --measure %s is what is compared', async (measure, differences) => {
    const { stdout } = await compare(MAIN_LINE, 'lr', '0.01', '0.1', '--json', '--measure', measure);
    const { pairs } = fromJsonString(CompareBranchesResponseSchema, stdout);
    expect(pairs.map(({ difference }) => difference)).toEqual(differences);
  });

  it('says that no branches can be paired', async () => {
    const { code, stdout } = await compare(MAIN_LINE, 'lr', '7', '8');
    expect({ code, stdout }).toEqual({
      code: 0,
      stdout: 'No two branches with these values have the same parent and branch point.\n',
    });
  });

  it.each([
    [['x', 'lr', '1', '2'], 2, 'TRAJECTORY is "x": expected the id of a trajectory'],
    [[MAIN_LINE, 'lr', '1'], 2, "missing required argument 'OTHER'"],
    [[MAIN_LINE, 'lr', '1', '2', '--confidence', '1'], 2, '--confidence is "1": expected a number greater than 0'],
    [[MAIN_LINE, 'lr', '1', '2', '--confidence', ''], 2, '--confidence is ""'],
    [[MAIN_LINE, 'lr', '1', '2', '--seed', '-1'], 2, '--seed is "-1": expected a whole number'],
    [[MAIN_LINE, 'lr', '1', '2', '--measure', 'luck'], 2, 'Allowed choices are reward-sum, reward-mean, steps.'],
    [[MAIN_LINE, 'lr', '1', '1'], 1, 'other_value'],
    [[treeId(404), 'lr', '1', '2'], 1, treeId(404)],
  ])('refuses %j with exit code %i', async (args, expected, words) => {
    const { code, stderr } = await compare(...args);
    expect(code).toBe(expected);
    expect(stderr).toContain(words);
  });
});
