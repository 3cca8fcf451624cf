import { execFile } from 'node:child_process';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

const EXAMPLES = path.resolve(import.meta.dirname, '../../examples');

/** Runs an example like a reader: in a process of its own. */
function runExample(name: string, ...args: string[]): Promise<{ code: unknown; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [path.join(EXAMPLES, name), ...args], (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : error.code, stdout, stderr });
    });
  });
}

describe('the examples', () => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer();
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('stream-steps continues where it stopped, and reads back what it wrote', async () => {
    const { code, stdout, stderr } = await runExample('stream-steps.ts', server.url);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain('going on at step 1 with x = 0\n');
    expect(stdout).toContain('going on at step 4 with x = 3\n');
    expect(stdout).toContain(
      '0: reset → [0]\n1: right → [1]\n2: right → [2]\n3: right → [3]\n4: right → [4]\n5: right → [5]\n6: left → [4]\n',
    );
    const trajectoryId = /trajectory (\S+)\n$/.exec(stdout)?.[1] ?? '';
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
    expect(trajectory).toMatchObject({ nextStepNumber: 8n, status: Status.COMPLETED });
  });

  it('branch-and-compare creates three branches and prints their results', async () => {
    const { code, stdout, stderr } = await runExample('branch-and-compare.ts', server.url);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain('frugal: shares 11 steps, differs from step 11, reward -800\n');
    expect(stdout).toContain('patient: shares 11 steps, differs from step 11, reward +');
    const trajectoryId = /trajectory (\S+)\n$/.exec(stdout)?.[1] ?? '';
    const { nodes } = await client.trajectories.getTree({ trajectoryId });
    expect(nodes.map(({ trajectory }) => trajectory?.status)).toEqual(Array(4).fill(Status.COMPLETED));
  });

  it('simulation prints an experiment, a run to step 200, and three branches with their own configs', async () => {
    const { code, stdout, stderr } = await runExample('simulation.ts', server.url);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const story = stdout.split('\n\n');
    expect(story[0]).toMatch(/^experiment CartPole .*\nmain: balanced for 200 steps\n/);
    expect(new Set(story[0]?.split('\n').slice(2))).toEqual(
      new Set([
        'other gains: fell at step 238',
        'learns no more: fell at step 342',
        'faster learner: balanced for 500 steps',
      ]),
    );
    expect(story[1]).toBe(
      [
        'compared with main',
        'faster learner: /learning_rate 0.01 → 0.1; shares 201 steps, differs from step 201, reward +300',
        'learns no more: /learning_rate 0.01 → 0; shares 201 steps, differs from step 201, reward +142',
        'other gains: /learning_rate 0.01 → 0, /weights [0,0,1,0] → [1,1,1,1]; shares 201 steps, differs from step 201, reward +38',
      ].join('\n'),
    );
    const [title, root, ...children] = story[2]?.split('\n') ?? [];
    expect([title, root]).toEqual(['tree', 'main: from the start, to step 200, reward 200']);
    // They were created concurrently, so their order is undefined.
    expect(children.toSorted()).toEqual([
      'faster learner: from main at step 200, to step 500, reward 500',
      'learns no more: from main at step 200, to step 342, reward 342',
      'other gains: from main at step 200, to step 238, reward 238',
    ]);
    expect(story[3]?.split('\n').slice(1)).toEqual([
      'faster learner: 0–200 of main, 201–500 of faster learner',
      'learns no more: 0–200 of main, 201–342 of learns no more',
      'other gains: 0–200 of main, 201–238 of other gains',
    ]);

    // Checks all tables of the store, not only the output of the example.
    const runId = /run (\S+)\n$/.exec(stdout)?.[1] ?? '';
    const { run: main } = await client.runs.getRun({ runId });
    expect(main).toMatchObject({
      number: 1n,
      status: Status.COMPLETED,
      resultJson: '{"steps":200,"fell":false}',
      rewardSum: 200,
    });
    const { runs } = await client.runs.listRuns({ parentId: runId, view: View.FULL });
    expect(runs.map(({ run }) => run?.status)).toEqual(Array(3).fill(Status.COMPLETED));
    const other = runs.find(({ run }) => run?.name === 'other gains')?.run;
    expect(JSON.parse(other?.configJson ?? '')).toEqual({ learning_rate: 0, weights: [1, 1, 1, 1] });
    const series = [];
    const wanted = { runIds: [other?.id ?? ''], keys: ['angle'] };
    for await (const message of client.runs.readMetrics(wanted)) series.push(...message.series);
    expect(series).toMatchObject([{ pointCount: 38n }]);
    const { step } = await client.trajectories.getCheckpoint({
      trajectoryId: other?.mainTrajectoryId ?? '',
      stepNumber: 200n,
    });
    expect(step?.states.map(({ name }) => name)).toEqual(['agent', 'env']);
  });
});
