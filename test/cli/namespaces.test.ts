import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

describe('namespaces', () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer();
  });
  afterAll(() => server.stop());

  const cli = (...args: string[]) => runCli(['namespaces', ...args, '--address', server.url]);
  const createIn = async (namespace: string) => {
    const client = connectClient({ address: server.url, namespace });
    await client.runs.createRun({ mainTrajectory: {} });
    await client.trajectories.createTrajectory({});
    client.close();
  };

  it('V7, B6: are listed by name while they have data, and deleted with all of it', async () => {
    expect((await cli('list')).stdout).toBe('No namespace has data.\n');
    expect((await cli('list', '--json')).stdout).toBe('');
    for (const name of ['team-b', 'team-a']) await createIn(name);
    expect((await cli('list')).stdout).toBe('team-a\nteam-b\n');
    expect((await cli('list', '--json')).stdout).toBe('"team-a"\n"team-b"\n');
    const deleted = await cli('delete', 'team-a', '--yes');
    expect(deleted).toMatchObject({
      code: 0,
      stdout: 'Deleted the namespace team-a: 1 run, 2 trajectories.\n',
    });
    expect((await cli('list')).stdout).toBe('team-b\n');
    const again = await cli('delete', 'team-a', '--yes', '--json');
    expect(JSON.parse(again.stdout)).toEqual({ deletedRuns: '0', deletedTrajectories: '0' });
  });

  it('are not deleted unless somebody confirms it', async () => {
    await createIn('team-c');
    const refused = await cli('delete', 'team-c');
    expect(refused).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('This deletes everything in the namespace team-c'),
    });
    expect((await cli('list')).stdout).toContain('team-c');
    expect(await cli('delete', 'No Name', '--yes')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('INVALID_REQUEST'),
    });
  });
});
