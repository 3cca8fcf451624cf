import { randomUUID } from 'node:crypto';
import { fromJsonString } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { GetDatabaseStatsResponseSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch stats, on %s', (engine) => {
  it('V4, F-23: shows the size, the numbers of rows and the largest runs', async () => {
    await using server = await startTestServer({ engine });
    const client = connectClient({ address: server.url });
    for (const [name, steps] of [
      ['small', 1],
      ['large', 3],
    ] as const) {
      const { run } = await client.runs.createRun({ name });
      const writer = await openWriter(client, {
        trajectoryId: randomUUID(),
        create: { trajectory: { runId: run!.id } },
      });
      for (let i = 0; i < steps; i += 1)
        await writer.append({ states: { env: Buffer.alloc(5000, i), agent: Buffer.from('same') } });
      await writer.close();
    }
    const { trajectories } = await client.trajectories.listTrajectories({ pageSize: 1 });
    for (const [name, size] of [
      ['small', 4],
      ['large', 6000],
    ] as const) {
      const state = { name, data: new Uint8Array(size) };
      const { id: trajectoryId, writerEpoch } = trajectories[0]!;
      await client.trajectories.attachState({ trajectoryId, writerEpoch, stepNumber: 1n, state });
    }
    client.close();
    const at = ['--address', server.url];
    const json = await runCli(['stats', '--json', ...at]);
    const { bytes, largestRuns, ...stats } = fromJsonString(GetDatabaseStatsResponseSchema, json.stdout);
    expect(bytes).toBeGreaterThan(10_000n);
    expect(stats).toMatchObject({ trajectories: 2n, steps: 4n, states: 4n, smallStates: 5n, runs: 2n, rollouts: 0n });
    expect(stats.freeBytes === undefined).toBe(engine === 'postgres');
    expect(largestRuns).toMatchObject([
      { name: 'large', trajectories: 1n, steps: 3n },
      { name: 'small', trajectories: 1n, steps: 1n },
    ]);
    const { code, stdout } = await runCli(['stats', ...at]);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^The database has [\d.]+ [KM]iB/);
    expect(stdout).toMatch(/\nsteps +4\nstates +9\n/);
    expect((await runCli(['verify', ...at])).stdout).toBe('Read 4 steps and 9 states: no faults.\n');
    expect(stdout).toMatch(/\nlarge +1 +3\nsmall +1 +1\n$/);
  });
});
