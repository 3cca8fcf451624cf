import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { StepSchema, TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ROLLOUT_COLUMNS, STEP_COLUMNS, TRAJECTORY_COLUMNS } from '../../src/tables/sources.ts';
import { writeTable } from '../../src/tables/write.ts';
import { outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { BRANCH, MAIN, plantAwkward } from './awkward_steps.ts';
import { runCli } from './run_cli.ts';

const UNKNOWN = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4cffff';
type Row = Record<string, unknown>;

describe.each(ENGINES)('anabranch table, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-table-'));
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    await plantAwkward(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const table = (...args: string[]) => runCli(['table', ...args, '--address', server.url]);
  const place = (name: string) => path.join(folder, name);

  /** Writes a table into a new file of this name and reads its rows. */
  async function rowsOf(name: string, ...args: string[]): Promise<Row[]> {
    const file = place(name);
    await rm(file, { force: true });
    const { code, stderr } = await table(...args, '-o', file);
    expect([code, stderr]).toEqual([0, '']);
    expect((await readdir(folder)).filter((each) => each.endsWith('.part'))).toEqual([]);
    if (name.endsWith('.parquet')) {
      return parquetReadObjects({ file: await asyncBufferFromFile(file), useOffsetIndex: false });
    }
    if (name.endsWith('.jsonl')) {
      const lines = (await readFile(file, 'utf8')).split('\n');
      expect(lines.pop()).toBe('');
      return lines.map((line) => JSON.parse(line) as Row);
    }
    using database = new DatabaseSync(file, { readOnly: true });
    const kind = args.includes('rollouts') ? 'rollouts' : args.includes('trajectories') ? 'trajectories' : 'steps';
    const statement = database.prepare(`SELECT * FROM ${kind}`);
    statement.setReadBigInts(true);
    return statement.all();
  }

  it('V9: has a column for every field of a step, a trajectory and a rollout, and no name twice', () => {
    for (const [columns, { fields }, added] of [
      [STEP_COLUMNS, StepSchema, ['trajectory_id', 'is_first', 'is_last', 'action', 'observation', 'owner_id']],
      [TRAJECTORY_COLUMNS, TrajectorySchema, []],
      [ROLLOUT_COLUMNS, RolloutSchema, []],
    ] as const) {
      expect(columns).toHaveLength(fields.length + added.length);
      expect(new Set(columns.map(({ name }) => name)).size).toBe(columns.length);
    }
    expect(STEP_COLUMNS.slice(0, 10).map(({ name }) => name)).toEqual(
      // docs/python.md
      'trajectory_id step is_first is_last is_terminal truncated action observation reward info'.split(' '),
    );
  });

  it.each(['steps.jsonl', 'steps.parquet', 'steps.sqlite'])(
    'V9: %s has a row for each step, with flags that align N actions with N + 1 observations',
    async (name) => {
      const rows = await rowsOf(name, MAIN);
      expect(rows.map((row) => [Number(row.step), Number(row.is_first), Number(row.is_last)])).toEqual([
        [0, 1, 0],
        [1, 0, 0],
        [2, 0, 0],
        [3, 0, 0],
        [4, 0, 1],
      ]);
      expect(rows.filter(({ action }) => action !== null)).toHaveLength(4);
      expect(rows.filter(({ observation }) => observation !== null)).toHaveLength(5);
      expect(rows.map((row) => Boolean(Number(row.is_terminal)))).toEqual([false, false, false, false, true]);
      expect(rows.every((row) => row.trajectory_id === MAIN && row.owner_id === MAIN)).toBe(true);
    },
  );

  it('V9: Parquet and SQLite have NaN, infinities, missing rewards and -0 apart', async () => {
    const parquet = await rowsOf('rewards.parquet', MAIN, '--columns', 'reward');
    expect(parquet.map(({ reward }) => reward)).toEqual([null, Number.NaN, Number.POSITIVE_INFINITY, -0, 1.5]);
    const sqlite = await rowsOf('rewards.db', MAIN, '--columns', 'reward');
    expect(sqlite.map(({ reward }) => reward)).toEqual([null, 'NaN', Number.POSITIVE_INFINITY, 0, 1.5]);
    const lines = await rowsOf('rewards.jsonl', MAIN, '--columns', 'reward');
    expect(lines.map(({ reward }) => reward)).toEqual([null, 'NaN', 'Infinity', -0, 1.5]);
  });

  it('V9: integers beyond 2^53, Unicode and JSON with line breaks arrive digit by digit', async () => {
    await rowsOf('exact.jsonl', MAIN, '--columns', 'step,action,observation');
    const lines = (await readFile(place('exact.jsonl'), 'utf8')).trimEnd().split('\n');
    expect(lines[1]).toBe(
      '{"step":1,"action":"naïve 👩‍🚀 \\"quoted\\"\\n","observation":{"n": 9007199254740993,  "x": 1e400}}',
    );
    expect(lines[2]).toBe('{"step":2,"action":[[9007199254740993,-1],[0,7]],"observation":[0.5,"NaN","-Infinity"]}');
    expect(lines[3]).toBe(
      '{"step":3,"action":{"text":"done","tool_calls":[{"id":"c1","name":"bash","arguments":"{\\"cmd\\":\\"ls\\"}"}],"messages":[]},"observation":{"messages":[],"tool_results":[],"observation":["out",null,{"data":"AP8=","mediaType":"image/png"}]}}',
    );
    const parquet = await rowsOf('exact.parquet', MAIN, '--columns', 'action,observation');
    expect(parquet[1]).toEqual({
      action: '"naïve 👩‍🚀 \\"quoted\\"\\n"',
      observation: '{"n": 9007199254740993,\n "x": 1e400}',
    });
  });

  it('V9: the whole actions, states and times of a step are columns too', async () => {
    const rows = await rowsOf('whole.parquet', MAIN);
    expect(JSON.parse(String(rows[3]?.actions))).toMatchObject([
      { type: 'tool_call', name: 'bash', callId: 'c1', tokenIds: [5, 6], content: { json: '{"cmd":"ls"}' } },
      { type: 'text' },
    ]);
    expect(JSON.parse(String(rows[3]?.states))).toMatchObject([{ name: 'env', size: '3' }]);
    expect(rows[4]?.start_time).toEqual(new Date('2026-01-02T03:04:05.678Z'));
    expect(rows[4]?.commit_time).toBeInstanceOf(Date);
    expect(JSON.parse(String(rows[4]?.metrics))).toEqual({ latency: 'NaN' });
    expect([rows[4]?.info, rows[4]?.reward_sum, rows[4]?.labels]).toEqual([
      '{"lives":3}',
      Number.POSITIVE_INFINITY,
      null,
    ]);
    const [last] = (await rowsOf('times.sqlite', MAIN, '--columns', 'start_time')).slice(-1);
    expect(last?.start_time).toBe('2026-01-02T03:04:05.678901Z');
  });

  it('V9: a branch has its inherited steps with their owner, or only its own with --own', async () => {
    const args = [BRANCH, '--columns', 'trajectory_id,step,owner_id,is_last'];
    const whole = await rowsOf('branch.jsonl', ...args);
    expect(whole.map((row) => [row.step, row.owner_id, row.is_last])).toEqual([
      [0, MAIN, false],
      [1, MAIN, false],
      [2, BRANCH, true],
    ]);
    expect(whole.every((row) => row.trajectory_id === BRANCH)).toBe(true);
    expect((await rowsOf('own.jsonl', ...args, '--own')).map(({ step }) => step)).toEqual([2]);
  });

  it('V9: selects by run, experiment, task, reward and label, and by nothing else than what is named', async () => {
    const ids = async (...args: string[]) => {
      const rows = await rowsOf('ids.jsonl', ...args, '--rows', 'trajectories', '--columns', 'trajectory_id');
      return rows.map((row) => row.trajectory_id);
    };
    expect(await ids('awkward')).toEqual([MAIN, BRANCH]);
    expect(await ids('-e', 'strange')).toEqual([MAIN, BRANCH]);
    expect(await ids('--task', 'letters')).toEqual([MAIN, BRANCH]);
    expect(await ids('awkward', '--max-reward', '5')).toEqual([BRANCH]);
    expect(await ids('--all', '--label', 'kind=first')).toEqual([MAIN]);
    expect(await ids('--all', '--status', 'completed')).toEqual([MAIN]);
    expect(await ids('--all', '--name', 'main')).toEqual([MAIN]);
    expect(await ids('--all', '--step-label', 'phase=reach')).toEqual([BRANCH]);
    expect(await ids('--all', '--step-label', 'phase=reach', '--step-label', 'hand=left')).toEqual([]);
    expect(await ids('--task', 'nothing')).toEqual([]);
  });

  it.each(['jsonl', 'parquet', 'sqlite'])('V9: an empty selection is an empty table (%s)', async (ending) => {
    expect(await rowsOf(`empty.${ending}`, '--task', 'nothing')).toEqual([]);
    if (ending !== 'parquet') return;
    const { schema } = await parquetMetadataAsync(await asyncBufferFromFile(place('empty.parquet')));
    expect(schema.slice(1).map(({ name }) => name)).toEqual(STEP_COLUMNS.map(({ name }) => name));
  });

  it('V9: writes the rollouts of a run and of its experiment', async () => {
    const { run } = await client.runs.getRun({ runName: 'awkward', experimentName: 'strange' });
    const wanted = { runId: run?.id ?? '', kind: StageKind.EVAL, number: 1n, initialStatus: Status.RUNNING };
    const { stage } = await client.runs.getOrCreateStage(wanted);
    const rollouts = [0n, 1n].map((number) => ({ groupNumber: 0n, number, inputJson: '{"seed": 9007199254740993}' }));
    await client.rollouts.createRollouts({ stageId: stage?.id ?? '', rollouts });
    for (const args of [['awkward'], ['-e', 'strange'], ['--all']]) {
      const rows = await rowsOf('rollouts.parquet', ...args, '--rows', 'rollouts');
      expect(rows.map((row) => [row.number, row.status, row.reward, row.input])).toEqual([
        [0n, 'pending', null, '{"seed": 9007199254740993}'],
        [1n, 'pending', null, '{"seed": 9007199254740993}'],
      ]);
    }
    expect((await rowsOf('rollouts.sqlite', 'awkward', '--rows', 'rollouts')).map(({ number }) => number)).toEqual([
      0n,
      1n,
    ]);
  });

  it('V9: memory holds one row group, whatever the number and the size of rows', async () => {
    const file = place('many.parquet');
    const columns = [
      { name: 'n', type: 'integer', read: (n: number) => BigInt(n) },
      { name: 'text', type: 'text', read: (n: number) => (n < 40_000 ? null : 'x'.repeat(1024 * 1024)) },
    ] as const;
    async function* numbers() {
      for (let n = 0; n < 40_030; n += 1) yield n;
    }
    expect(await writeTable({ path: file, format: 'parquet', table: 'steps' }, columns, numbers())).toBe(40_030);
    const { row_groups: groups } = await parquetMetadataAsync(await asyncBufferFromFile(file));
    // Two full groups; then groups end after 8 MiB of text.
    expect(groups.map(({ num_rows }) => Number(num_rows))).toEqual([16_384, 16_384, 7_240, 8, 8, 6]);
    const read = await parquetReadObjects({ file: await asyncBufferFromFile(file), columns: ['n'] });
    expect(read.map(({ n }) => Number(n))).toEqual(Array.from({ length: 40_030 }, (_, n) => n));
  });

  it('--json tells what was written', async () => {
    const file = place('told.parquet');
    const { stdout } = await table(MAIN, '-o', file, '--json');
    const { size } = await import('node:fs').then(({ statSync }) => statSync(file));
    expect(JSON.parse(stdout)).toEqual({ file, format: 'parquet', table: 'steps', rows: 5, bytes: size });
  });

  it.each([
    [[], 2, 'Name a trajectory, a run, an --experiment or a --task, or add --all.'],
    [[MAIN, '--all'], 2, '--all selects the whole database'],
    [[UNKNOWN], 1, 'lists what exists'],
    [['nowhere'], 1, 'No run has the name "nowhere"'],
    [['-e', 'nowhere'], 1, 'lists what exists'],
    [
      [MAIN, '--columns', 'step,steps'],
      2,
      '--columns: "steps" is no such column: expected some of trajectory_id, step,',
    ],
    [[MAIN, '--columns', 'step,step'], 2, '--columns: "step" is named twice'],
    [[MAIN, '--rows', 'rollouts'], 2, '--rows rollouts: a trajectory has none'],
    [[MAIN, '--rows', 'rows'], 2, 'Allowed choices are steps, trajectories, rollouts'],
    [['--all', '--rows', 'rollouts', '--name', 'main'], 2, '--name selects trajectories'],
    [['--all', '--rows', 'rollouts', '--step-label', 'a=b'], 2, '--step-label selects trajectories'],
    [['--all', '--step-label', 'a'], 2, '--step-label is "a": expected KEY=VALUE'],
    [[MAIN, '--min-reward', 'x'], 2, '--min-reward is "x"'],
  ] as const)('with %s fails and writes no file', async (args, code, message) => {
    const outcome = await table(...args, '-o', place('none.jsonl'));
    expect(outcome).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(message) });
    expect((await readdir(folder)).filter((name) => name.startsWith('none'))).toEqual([]);
  });

  it('needs a file of a known ending, or --format, and does not replace one', async () => {
    const unknown = await table(MAIN, '-o', place('steps.csv'));
    expect(unknown).toMatchObject({ code: 2, stderr: expect.stringContaining('expected an ending of .jsonl') });
    await writeFile(place('taken.jsonl'), 'mine');
    const taken = await table(MAIN, '-o', place('taken.jsonl'));
    expect(taken).toMatchObject({ code: 1, stderr: expect.stringContaining('exists already') });
    expect(await readFile(place('taken.jsonl'), 'utf8')).toBe('mine');
    const named = await table(MAIN, '-o', place('steps.csv'), '--format', 'jsonl');
    expect(named).toMatchObject({ code: 0, stdout: expect.stringContaining('5 rows of steps') });
    const nowhere = await table(MAIN, '-o', place('no/folder.parquet'));
    expect(nowhere).toMatchObject({ code: 1, stderr: expect.stringContaining('cannot be created') });
  });

  it.skipIf(process.getuid?.() === 0)('a folder that cannot be written is an error', async () => {
    await mkdir(place('closed'));
    await chmod(place('closed'), 0o500);
    const { code, stderr } = await table(MAIN, '-o', place('closed/steps.sqlite'));
    expect([code, stderr]).toEqual([1, expect.stringContaining('cannot be created')]);
  });

  it('an interrupted command leaves no file', async () => {
    const stopped = await runCli(['table', MAIN, '-o', place('stopped.parquet'), '--address', server.url], {
      signal: AbortSignal.abort(),
    });
    expect(stopped).toMatchObject({ code: 1, stderr: 'Interrupted. No file was written.\n' });
    expect((await readdir(folder)).filter((name) => name.startsWith('stopped'))).toEqual([]);
  });

  it('shows a bar on a terminal', async () => {
    const args = ['table', BRANCH, '-o', place('shown.jsonl'), '--address', server.url];
    const { code, stdout } = await runCli(args, { terminal: true });
    expect(code).toBe(0);
    expect(stdout).toContain('of 3');
  });

  it('a damaged trajectory ends the command with an error that names it, and leaves no file', async () => {
    const damaged = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c0009';
    await client.trajectories.createTrajectory({ trajectoryId: damaged, taskId: 'damaged', root: {} });
    const sql = await outsideSql(server.database);
    await sql.rows(
      `update segments set checksum = checksum + 1 where trajectory = (select key from trajectories where task_id = 'damaged')`,
    );
    await sql.close();
    const { code, stderr } = await table('--task', 'damaged', '-o', place('damaged.parquet'));
    expect([code, stderr]).toEqual([1, expect.stringContaining(`Trajectory ${damaged} cannot be read whole: `)]);
    expect((await readdir(folder)).filter((name) => name.startsWith('damaged'))).toEqual([]);
  });
});
