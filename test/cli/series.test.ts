import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StepSeriesSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, HASTY, LATE, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { type CliOptions, runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch series, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  const MEASURED = treeId(50);

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    await plantTree(client);
    await client.trajectories.createTrajectory({ trajectoryId: MEASURED });
    for (const [i, fuel] of [3, 9, 4].entries()) {
      const state = { name: 'cli', mediaType: 'application/json', data: Buffer.from(`{"fuel":${fuel}}`) };
      await client.trajectories.appendStep({
        trajectoryId: MEASURED,
        step: {
          stepNumber: BigInt(i),
          metrics: { loss: i / 2 },
          observations: [{ type: 'json', content: { json: `[${fuel * 10}]` } }],
          states: [state],
        },
      });
    }
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  const series = (args: readonly string[], options: CliOptions = {}) =>
    runCli(['series', ...args, '--address', server.url], options);
  const valuesOf = async (...args: string[]) => {
    const { code, stdout } = await series([...args, '--csv']);
    expect(code).toBe(0);
    const [heading, ...lines] = stdout.trimEnd().split('\n');
    expect(heading).toBe('trajectory,step,value');
    return lines.map((line) => line.split(',').slice(1).map(Number));
  };

  it('draws a sparkline with the last, smallest and largest value of each trajectory of a tree', async () => {
    const { code, stdout, stderr } = await series([GENTLE, '--tree', '--value', 'sum']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await expect(stdout).toMatchFileSnapshot('golden/series.txt');
    for (const line of stdout.split('\n')) expect(widthOf(line)).toBeLessThanOrEqual(80);
    for (const id of [MAIN_LINE, GENTLE, HASTY, LATE]) expect(stdout).toContain(id);
  });

  it.each([
    ['metric:loss', [0, 0.5, 1]],
    ['observation:/0', [30, 90, 40]],
    ['state:cli:/fuel', [3, 9, 4]],
  ])('--value %s prints this value of each step', async (value, expected) => {
    expect(await valuesOf(MEASURED, '--value', value)).toEqual(expected.map((each, i) => [i, each]));
  });

  it('prints inherited steps, or with --own only those after the branch point, in a range', async () => {
    expect((await valuesOf(HASTY)).length).toBe(14);
    expect(await valuesOf(HASTY, '--own')).toEqual([
      [11, 9],
      [12, 8],
      [13, 7],
    ]);
    expect(await valuesOf(HASTY, '--from', '9', '--to', '12')).toEqual([
      [9, 9],
      [10, 10],
      [11, 9],
    ]);
  });

  it('--points bounds the points of each trajectory', async () => {
    expect((await valuesOf(MAIN_LINE, '--points', '8')).length).toBeLessThanOrEqual(8);
  });

  it('--json prints the series of each trajectory, one per line', async () => {
    const { stdout } = await series([HASTY, LATE, '--json', '--own']);
    const found = stdout
      .trimEnd()
      .split('\n')
      .map((line) => fromJsonString(StepSeriesSchema, line));
    expect(found.map(({ trajectoryId, values }) => [trajectoryId, values])).toEqual([
      [HASTY, [9, 8, 7]],
      [LATE, [17.25, 19.5]],
    ]);
  });

  it('a trajectory without the value has a line without numbers', async () => {
    const { stdout } = await series([HASTY, '--value', 'metric:none']);
    expect(stdout).toMatch(new RegExp(`\n${HASTY} +– *\n$`));
  });

  it('explains a trajectory that does not exist', async () => {
    const { code, stderr } = await series([treeId(404)]);
    expect(code).toBe(1);
    expect(stderr).toContain(treeId(404));
  });

  it.each([
    [[MAIN_LINE, '--value', 'colour'], '--value is "colour": expected sum, reward, metric:KEY'],
    [[MAIN_LINE, '--value', 'state:/x'], '--value is "state:/x"'],
    [[MAIN_LINE, HASTY, '--tree'], '--tree reads one tree: expected one trajectory, not 2.'],
    [[MAIN_LINE, '--points', '7'], '--points is "7": expected a whole number, 8 to 10000.'],
    [[MAIN_LINE, '--csv', '--json'], "'--csv' cannot be used with option '--json'"],
    [['x'], 'TRAJECTORY is "x": expected the id of a trajectory'],
  ])('refuses %j with exit code 2', async (args, words) => {
    const { code, stderr } = await series(args);
    expect(code).toBe(2);
    expect(stderr).toContain(words);
  });
});
