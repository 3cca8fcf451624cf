import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, downloadState, readSteps } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { makeFleDatabase, STATE_OF_TWO } from './fle_database.ts';

const EXAMPLES = path.resolve(import.meta.dirname, '../../examples');

/** Runs an example as a reader would: a process of its own. */
function runExample(name: string, ...args: string[]): Promise<{ code: unknown; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [path.join(EXAMPLES, name), ...args], (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : error.code, stdout, stderr });
    });
  });
}

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-examples-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

describe.each(ENGINES)('the examples, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('stream-steps goes on where it stopped, and reads back what it wrote', async () => {
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

  it('branch-and-compare branches three ways and tells what came of them', async () => {
    const { code, stdout, stderr } = await runExample('branch-and-compare.ts', server.url);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain('frugal: shares 11 steps, differs from step 11, reward -800\n');
    expect(stdout).toContain('patient: shares 11 steps, differs from step 11, reward +');
    const trajectoryId = /trajectory (\S+)\n$/.exec(stdout)?.[1] ?? '';
    const { nodes } = await client.trajectories.getTree({ trajectoryId });
    expect(nodes.map(({ trajectory }) => trajectory?.status)).toEqual(Array(4).fill(Status.COMPLETED));
  });

  it('simulation tells of an experiment, a run to step 200, and three branches with configs of their own', async () => {
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
    // They were made at the same time: in any order.
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

    // Not only the example says so: what stands in the store, in all its tables.
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

  it('fle-replay streams a database in and reads every column and state back, byte for byte', async () => {
    const file = path.join(folder, `${engine}.db`);
    makeFleDatabase(file);
    const { code, stdout, stderr } = await runExample('fle-replay.ts', file, server.url);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(
      /Read back: 9 programs, 207 values in 23 columns, and 15 states \(\d+ bytes\): every one equal, byte for byte\.\n$/,
    );
    const told = stdout.split('\n').flatMap((line) => /^trajectory \S+: (.*)$/.exec(line)?.[1] ?? []);
    expect(told).toEqual([
      '4 programs',
      '1 programs',
      '1 programs',
      '1 programs, from program 1 on',
      '2 programs, from program 2 on',
    ]);

    // Not only the example says so: the chain 1–2–3–6, as it stands in the store.
    const trajectoryId = /^trajectory (\S+): 4 programs/.exec(stdout)?.[1] ?? '';
    const steps = [];
    for await (const { step } of readSteps(client, { trajectoryId })) steps.push(step);
    expect(steps.map(({ stepNumber, reward }) => [stepNumber, reward])).toEqual([
      [0n, undefined],
      [1n, 12.5],
      [2n, undefined],
      [3n, 0.25],
      [4n, 3],
    ]);
    expect(steps[1]).toMatchObject({
      actions: [{ type: 'code', content: { text: 'print("hello")\n' } }],
      observations: [{ type: 'response', content: { text: "1: ('hello',)\n" } }],
    });
    expect(steps[1]?.metrics).toMatchObject({ token_usage: 32395, depth: 0.5, raw_reward: 0.1 });
    const env = steps[2]?.states.find(({ name }) => name === 'env');
    expect(new TextDecoder().decode(await downloadState(client, env?.digest ?? ''))).toBe(STATE_OF_TWO);
  });

  // A real database, where one is at hand: FLE_DB names it.
  const real = process.env.FLE_DB ? [process.env.FLE_DB] : [];
  for (const file of real) {
    it('fle-replay does the same with the database that FLE_DB names', async () => {
      const database = new DatabaseSync(file, { readOnly: true });
      const { programs } = database.prepare('SELECT count(*) AS programs FROM programs').get() as { programs: number };
      database.close();
      const { code, stdout, stderr } = await runExample('fle-replay.ts', file, server.url);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toContain(`Read back: ${programs} programs, `);
      expect(stdout).toContain('every one equal, byte for byte.\n');
    });
  }
});

describe('fle-replay', () => {
  it.each([
    ['no file', async () => [], 'usage: fle-replay.ts FILE [ADDRESS]'],
    ['a file that is not there', async () => ['/nowhere/skills.db'], 'unable to open database file'],
    [
      'a file that is no database',
      async () => [await fileOf('text.db', 'hello, this is not a database at all')],
      'file is not a database',
    ],
    [
      'a database of something else',
      async () => [databaseOf('other.db', 'CREATE TABLE t (x)')],
      'its table "programs" has no column',
    ],
    [
      'programs in a circle',
      async () => {
        const file = path.join(folder, 'circle.db');
        makeFleDatabase(file);
        const database = new DatabaseSync(file);
        database.exec('UPDATE programs SET parent_id = 8 WHERE id = 8');
        database.close();
        return [file];
      },
      '1 of its programs follow each other in a circle',
    ],
  ])('says in one line what is wrong with %s', async (_, args, words) => {
    const { code, stdout, stderr } = await runExample('fle-replay.ts', ...(await args()));
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).toContain(words);
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });

  async function fileOf(name: string, content: string): Promise<string> {
    await writeFile(path.join(folder, name), content);
    return path.join(folder, name);
  }

  function databaseOf(name: string, sql: string): string {
    const database = new DatabaseSync(path.join(folder, name));
    database.exec(sql);
    database.close();
    return path.join(folder, name);
  }
});
