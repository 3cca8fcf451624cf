import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { LATE, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch picture, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-picture-'));
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    await plantTree(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const picture = (...args: string[]) => runCli(['picture', ...args, '--address', server.url]);

  it('draws plot and bars of the tree of any trajectory, light and dark', async () => {
    const light = await picture(LATE);
    expect(light).toMatchObject({ code: 0, stderr: '' });
    await expect(light.stdout).toMatchFileSnapshot('golden/picture.svg');
    const dark = await picture(`${MAIN_LINE}@fork`, '--theme', 'dark');
    const withoutColours = (svg: string) => svg.replaceAll(/#[0-9a-f]{3,8}\b/g, '#');
    expect(dark.stdout).not.toBe(light.stdout);
    expect(withoutColours(dark.stdout)).toBe(withoutColours(light.stdout));
  });

  it('draws one of the two, another value, and as many rows as wanted', async () => {
    const plot = await picture(MAIN_LINE, '--show', 'plot', '--value', 'reward', '--label', 'per step');
    await expect(plot.stdout).toMatchFileSnapshot('golden/picture.plot.svg');
    const bars = await picture(MAIN_LINE, '--show', 'bars', '--rows', '2');
    await expect(bars.stdout).toMatchFileSnapshot('golden/picture.bars.svg');
    expect(bars.stdout).toContain('>and 2 more<');
  });

  it("draws the tree of a run's main trajectory", async () => {
    const { run } = await client.runs.createRun({ name: '<b>&"\u0001\u202e', mainTrajectory: {} });
    const { code, stdout } = await picture(run?.id ?? '');
    expect(code).toBe(0);
    expect(stdout).toContain('>&lt;b&gt;&amp;&quot;\ufffd\ufffd<');
    await client.runs.createRun({ name: 'bare' });
    expect(await picture('bare')).toMatchObject({ code: 1, stderr: 'The run bare has no main trajectory.\n' });
    expect(await picture(treeId(99))).toMatchObject({ code: 1, stderr: expect.stringContaining(treeId(99)) });
  });

  it('creates a file, and replaces none', async () => {
    const file = path.join(folder, 'tree.svg');
    expect(await picture(MAIN_LINE, '-o', file)).toEqual({ code: 0, stdout: '', stderr: '' });
    expect(await readFile(file, 'utf8')).toMatch(/^<svg [\s\S]*<\/svg>\n$/);
    await writeFile(file, 'mine');
    const again = await picture(MAIN_LINE, '-o', file);
    expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('exists already')]);
    expect(await readFile(file, 'utf8')).toBe('mine');
  });

  it('says so if all lines coincide', async () => {
    const [root, branch] = [treeId(98), treeId(97)];
    await client.trajectories.createTrajectory({ trajectoryId: root });
    await client.trajectories.appendStep({ trajectoryId: root, step: { stepNumber: 0n, reward: 1 } });
    await client.trajectories.branchTrajectory({ trajectoryId: root, stepNumber: 0n, branchId: branch });
    for (const trajectoryId of [root, branch])
      await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 1n, reward: 1 } });
    const { code, stderr } = await picture(root);
    expect([code, stderr]).toEqual([0, 'All lines of Sum of rewards coincide. --value plots another value.\n']);
  });

  it('of nothing says so, and names what the steps have', async () => {
    const { code, stdout, stderr } = await picture(MAIN_LINE, '--value', 'observation:/9');
    expect([code, stdout]).toEqual([0, expect.stringContaining('>No step has this value.<')]);
    expect(stderr).toBe('No step has a number at observation:/9. Other values: sum, reward.\n');
    const empty = treeId(96);
    await client.trajectories.createTrajectory({ trajectoryId: empty });
    expect((await picture(empty)).stderr).toBe('No step has a number at sum. Other values: reward.\n');
    expect((await picture(empty, '--show', 'bars')).stderr).toBe('');
  });

  it('draws numbers of arrays, as Python records the observations of Gymnasium', async () => {
    const trajectoryId = treeId(95);
    const observation = (...values: number[]) => {
      const tensor = { dtype: '<f4', shape: [values.length], data: new Uint8Array(Float32Array.from(values).buffer) };
      return { observations: [{ content: { tensor } }] };
    };
    const writer = await openWriter(client, { trajectoryId, create: { trajectory: { name: 'cart' } } });
    for (let n = 0; n < 5; n += 1) await writer.append(observation(0, 0, n / 10, 0));
    await writer.close();
    const { stdout, stderr } = await picture(trajectoryId, '--value', 'observation:/2', '--show', 'plot');
    expect([stderr, stdout]).toEqual(['', expect.stringContaining('>observation /2<')]);
    expect(stdout.match(/L\d/g)!.length).toBeGreaterThanOrEqual(4);
    const other = await picture(trajectoryId, '--value', 'observation:/4');
    expect(other.stderr).toBe(
      'No step has a number at observation:/4. Other values: sum, reward, observation:/0, observation:/1, observation:/2, observation:/3.\n',
    );
  });

  it.each([
    [['--value', 'nonsense'], '--value is "nonsense": expected sum, reward, metric:KEY'],
    [['--rows', '0'], '--rows is "0": expected a whole number, 1 to 1000.'],
    [['--theme', 'blue'], 'Allowed choices are light, dark.'],
  ])('refuses %j', async (args, message) => {
    const { code, stdout, stderr } = await picture(MAIN_LINE, ...args);
    expect([code, stdout]).toEqual([2, '']);
    expect(stderr).toContain(message);
  });
});
