import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { MAIN, plantAwkward } from '../cli/awkward_steps.ts';
import { runCli } from '../cli/run_cli.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { run } from './run.ts';
import { ensureVenv } from './tools.ts';

const PACKAGES = [
  'duckdb==2.0.0',
  'pandas==3.1.1',
  'pyarrow==26.0.1',
  'numpy==2.4.6',
  'grpcio==1.85.1',
  'protobuf==7.36.2',
  'googleapis-common-protos==1.76.0',
];
const ROOT = path.resolve(import.meta.dirname, '../..');
const EPISODE = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c0003';

describe('DuckDB, pandas and sqlite3', () => {
  let server: TestServer;
  let folder: string;
  let found: Record<string, unknown>;

  beforeAll(async () => {
    const python = await ensureVenv('tables', 'python3', PACKAGES);
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-tables-'));
    server = await startTestServer({ engine: 'sqlite' });
    await plant();
    for (const [kind, file] of [
      ['steps', 'steps.jsonl'],
      ['steps', 'steps.parquet'],
      ['steps', 'steps.sqlite'],
      ['trajectories', 'trajectories.parquet'],
      ['rollouts', 'rollouts.parquet'],
    ] as const) {
      const args = ['table', '--all', '--rows', kind, '-o', path.join(folder, file), '--address', server.url];
      expect(await runCli(args)).toMatchObject({ code: 0, stderr: '' });
    }
    const program = path.join(ROOT, 'test/languages/python/tables.py');
    const env = { PYTHONPATH: path.join(ROOT, 'clients/python/src'), PYTHONUTF8: '1' };
    const args = [program, folder, `${server.host}:${server.port}`, MAIN];
    found = JSON.parse(await run(python, args, { env })) as Record<string, unknown>;
  }, 900_000);
  afterAll(async () => {
    await server?.stop();
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  });

  /** Stores awkward steps, two rollouts, and an episode as the Python package records one. */
  async function plant(): Promise<void> {
    const client = connectClient({ address: server.url });
    await plantAwkward(client);
    const { run: stored } = await client.runs.getRun({ runName: 'awkward', experimentName: 'strange' });
    const wanted = { runId: stored?.id ?? '', kind: StageKind.EVAL, number: 1n, initialStatus: Status.RUNNING };
    const { stage } = await client.runs.getOrCreateStage(wanted);
    const rollouts = [0n, 1n].map((number) => ({ groupNumber: 0n, number, inputJson: '{"seed": 9007199254740993}' }));
    await client.rollouts.createRollouts({ stageId: stage?.id ?? '', rollouts });
    const writer = await openWriter(client, {
      trajectoryId: EPISODE,
      create: { trajectory: { name: 'episode', taskId: 'counting' } },
    });
    for (let i = 0; i < 4; i += 1) {
      const data = Buffer.from(new Float32Array([i, i / 3, -0.1, 1e-30]).buffer);
      await writer.append({
        actions: i === 0 ? [] : [{ content: { json: String(i % 2) } }],
        observations: [{ content: { tensor: { dtype: '<f4', shape: [4], data } } }],
        ...(i === 0 ? {} : { reward: i, infoJson: '{"lives": 3}' }),
        terminated: i === 3,
      });
    }
    await writer.seal(Status.COMPLETED);
    await writer.close();
    client.close();
  }

  const FLAGS = [
    [0, true, false, false],
    [1, false, false, false],
    [2, false, false, false],
    [3, false, false, false],
    [4, false, true, true],
  ];
  const N = [null, '9007199254740993', null, null, null];

  it('V9: DuckDB reads Parquet and JSON Lines with the same values', () => {
    const rewards = [null, 'nan', 'inf', -0, 1.5];
    const rows = FLAGS.map((flags, i) => [...flags, rewards[i], N[i]]);
    expect(found['duckdb parquet']).toEqual(rows);
    expect(found['duckdb jsonl']).toEqual(rows);
    expect(found['duckdb inferred']).toEqual([[12, 4]]);
    expect(found.rollouts).toEqual([0, 1].map((number) => [number, 'pending', '9007199254740993']));
  });

  it('V9: DuckDB joins steps and trajectories by trajectory_id', () => {
    expect(found.join).toEqual([
      ['branch', 3, 2],
      ['episode', 4, 6],
      ['main', 5, 1.5],
    ]);
  });

  it('V9: sqlite3 reads the same values, booleans as 0 and 1, and NaN as text', () => {
    const rewards = [null, 'NaN', 'inf', 0, 1.5];
    expect(found.sqlite3).toEqual(FLAGS.map(([step, ...flags], i) => [step, ...flags.map(Number), rewards[i], N[i]]));
  });

  it('V9: pandas reads Parquet with types, and JSON Lines', () => {
    expect(found['pandas types']).toEqual({
      step: 'int64',
      is_first: 'bool',
      reward: 'float64',
      start_time: 'datetime64[us, UTC]',
      writer_epoch: 'int64',
    });
    expect(found['pandas rewards']).toEqual(['nan', 'nan', 'inf', -0, 1.5]);
    expect(found['pandas jsonl']).toEqual([12, 'nan']);
  });

  it('V9: the first columns are those of to_arrow() of the Python package, with equal values', () => {
    const same = ['first columns', 'same types', 'same cells', 'same values'];
    expect(same.map((name) => [name, found[name]])).toEqual(same.map((name) => [name, true]));
  });
});
