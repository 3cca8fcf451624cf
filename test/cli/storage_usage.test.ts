import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StorageUsageSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6b';

describe('anabranch stats of a part', () => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite' });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    const { run } = await client.runs.createRun({ name: 'measured' });
    await client.trajectories.createTrajectory({ trajectoryId: ID, runId: run!.id });
    const writer = await openWriter(client, { trajectoryId: ID });
    for (let i = 0; i < 3; i += 1)
      await writer.append({ states: { env: Buffer.alloc(5000, i), small: Buffer.from('s') } });
    await writer.close();
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('S12: shows what a run, a trajectory and the namespace take', async () => {
    const texts = new Set<string>();
    for (const scope of [['--run', 'measured'], ['--trajectory', ID], ['--namespace']]) {
      const { code, stdout, stderr } = await runCli(['stats', ...scope, ...at]);
      expect([code, stderr]).toEqual([0, '']);
      texts.add(stdout);
    }
    expect([...texts]).toHaveLength(1);
    await expect([...texts].join('')).toMatchFileSnapshot('golden/storage_usage.txt');
  });

  it('S12: --json prints the result, and a terminal shows the progress', async () => {
    const { stdout } = await runCli(['stats', '--run', 'measured', '--json', ...at]);
    const { steps, states } = fromJsonString(StorageUsageSchema, stdout);
    expect(states!.logicalBytes).toBe(3n * 5000n + 3n + 6n);
    expect(states).toMatchObject({ sharedBytes: 0n, uniqueBytes: states!.storedBytes });
    expect(steps!.storedBytes).toBeGreaterThan(0n);
    const terminal = await runCli(['stats', '--run', 'measured', ...at], { terminal: true });
    expect(terminal.stdout).toContain('steps');
    expect(terminal.stdout).toContain('of 3');
  });

  it('takes at most one of --run, --trajectory and --namespace', async () => {
    const two = await runCli(['stats', '--run', 'measured', '--namespace', ...at]);
    expect([two.code, two.stderr]).toEqual([2, expect.stringContaining('cannot be used with')]);
    const unknown = await runCli(['stats', '--run', 'unknown', ...at]);
    expect([unknown.code, unknown.stderr]).toEqual([1, expect.stringContaining('No run has the name')]);
  });
});
