/** Tests `import-fle` from both engines of FLE into both of ours. */
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, downloadState } from '../../src/client/index.ts';
import { openFleSource } from '../../src/fle/open.ts';
import {
  createFleDatabase,
  EXTREMES,
  type FleDatabase,
  MODEL,
  NOT_UTF8,
  PATHS,
  SQLITE_EXTREMES,
  STATE_OF_TWO,
  TASK,
  TREES,
} from '../fle/fle_database.ts';
import { pathsOf, programsOf, rowOf, trajectoriesOf } from '../fle/read_back.ts';
import { createDatabase, ENGINES, type Engine, ON_POSTGRES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

interface Imported {
  readonly programs: number;
  readonly imported: number;
  readonly runs: readonly { readonly runName: string; readonly runId: string; readonly imported: number }[];
}

async function newSource(engine: Engine): Promise<FleDatabase> {
  const source = await createFleDatabase(engine);
  onTestFinished(() => source.drop());
  return source;
}

/** Bytes are compared by digest, because comparing megabytes one by one takes seconds. */
function digested(row: ReadonlyMap<string, { readonly type: string; readonly value: unknown }>) {
  const digest = (value: unknown) =>
    value instanceof Uint8Array ? createHash('sha256').update(value).digest('hex') : value;
  return new Map([...row].map(([column, { type, value }]) => [column, { type, value: digest(value) }]));
}

function open({ engine, source }: Pick<FleDatabase, 'engine' | 'source'>) {
  const database = engine === 'sqlite' ? { engine, path: source } : { engine, url: source };
  return openFleSource(database, 'source');
}

describe.each(ENGINES)('import-fle, on %s', (target) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine: target });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  async function runImport(source: string, experiment: string): Promise<Imported> {
    const args = ['import-fle', source, '--experiment', experiment, '--json', '--address', server.url];
    const { code, stdout, stderr } = await runCli(args);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return JSON.parse(stdout) as Imported;
  }

  /** Compares every value of every program with the source. */
  async function expectAllValues(database: Pick<FleDatabase, 'engine' | 'source'>, experiment: string) {
    const ids = (await programsOf(client, experiment)).map(({ metrics }) => metrics.program_id ?? Number.NaN);
    const source = await open(database);
    const rows = await source.readRows(ids);
    await source.close();
    const places = await placesOf(experiment);
    for (const [i, row] of rows.entries()) {
      const { trajectoryId, step } = await client.trajectories.getStep(places.get(ids[i]!)!);
      expect(digested(await rowOf(client, trajectoryId, step!))).toEqual(digested(row));
    }
    return ids;
  }

  /** Where the programs of an experiment are, by their ids. */
  async function placesOf(name: string) {
    const { experiment } = await client.runs.getExperiment({ name });
    const { steps } = await client.trajectories.listSteps({ experimentId: experiment?.id ?? '', pageSize: 1000 });
    return new Map(
      steps.map(({ trajectoryId, step }) => [step?.metrics.program_id, { trajectoryId, stepNumber: step!.stepNumber }]),
    );
  }

  async function getProgram(id: number, experiment: string) {
    const places = await placesOf(experiment);
    return client.trajectories.getStep(places.get(id)!);
  }

  describe.each(ENGINES)('from a source on %s', (engine) => {
    /** For tests that only read. */
    const common = `trees of ${engine}`;
    let trees: FleDatabase;
    let treesImported: Imported;
    beforeAll(async () => {
      trees = await createFleDatabase(engine);
      await trees.insert(...TREES);
      treesImported = await runImport(trees.source, common);
    });
    afterAll(() => trees?.drop());

    it('creates a run for each version, a trajectory for each instance and process, and branches where a parent has several children', async () => {
      expect(treesImported).toMatchObject({
        experiment: common,
        programs: 12,
        imported: 12,
        runs: [
          { runName: 'fle-1', programs: 8, imported: 8, trajectories: 2, branches: 2 },
          { runName: 'fle-2', programs: 4, imported: 4, trajectories: 1, branches: 2 },
        ],
      });
      expect(await pathsOf(client, common)).toEqual(PATHS);
      const branches = (await trajectoriesOf(client, common)).filter(({ parentId }) => parentId !== '');
      expect(Object.fromEntries(branches.map(({ name, branchPoint }) => [name, branchPoint]))).toEqual({
        'fle-1, instance 0, process 0, program 4': 2n,
        'fle-1, instance 1, process 1, program 7': 2n,
        'fle-2, instance 0, process 0, program 11': 0n,
        'fle-2, instance 0, process 0, program 12': 0n,
      });
      expect(await expectAllValues(trees, common)).toEqual(TREES.map(({ id }) => id));
    });

    it('lets Summarize and filters by task, model, version, instance and process find everything', async () => {
      const { runs } = treesImported;
      const experimentId = (await client.runs.getExperiment({ name: common })).experiment?.id ?? '';
      const named = async (filter: { taskId?: string; labels?: Record<string, string> }) => {
        const { trajectories } = await client.trajectories.listTrajectories({ experimentId, ...filter });
        return trajectories.map(({ name }) => name).toSorted();
      };
      const names = Object.keys(PATHS).toSorted();
      const [one, two] = ['fle-1', 'fle-2'].map((run) => names.filter((name) => name.startsWith(run)));
      expect(await named({ taskId: TASK.PLATES })).toEqual(one);
      expect(await named({ taskId: TASK.OPEN })).toEqual(two);
      expect(await named({ labels: { model: MODEL.SONNET } })).toEqual(one);
      expect(await named({ labels: { version: '2' } })).toEqual(two);
      expect(await named({ labels: { instance: '1', process_id: '1' } })).toEqual(
        names.filter((name) => name.startsWith('fle-1, instance 1, process 1')),
      );
      const summary = async (dimensions: { key?: SummaryKey; label?: string }[]) => {
        const { summaries } = await client.runs.summarize({ experimentId, dimensions });
        return summaries.map(({ values, trajectoryCount, stepCount, finalRewardMean, metricSums }) => {
          return [...values, Number(trajectoryCount), Number(stepCount), finalRewardMean, metricSums.token_usage];
        });
      };
      // Roots: 1–2–3, 5–8 and 9–10, each with a step 0.
      expect(await summary([])).toEqual([[3, 10, (6 + 13 + 19) / 3, 738]]);
      const byVersion = [
        [2, 7, 9.5, 519],
        [1, 3, 19, 219],
      ];
      expect(await summary([{ key: SummaryKey.TASK }])).toEqual([
        [TASK.PLATES, ...byVersion[0]!],
        [TASK.OPEN, ...byVersion[1]!],
      ]);
      expect(await summary([{ label: 'model' }, { label: 'version' }])).toEqual([
        [MODEL.SONNET, '1', ...byVersion[0]!],
        [MODEL.GPT, '2', ...byVersion[1]!],
      ]);
      const listed = await client.runs.listRuns({ experimentName: common, labels: { model: MODEL.GPT } });
      expect(listed.runs.map(({ run }) => run?.name)).toEqual(['fle-2']);
      const { run } = await client.runs.getRun({ runId: runs[0]?.runId ?? '' });
      expect(run).toMatchObject({ description: 'type: plates', labels: { version: '1', model: MODEL.SONNET } });
    });

    it('stores code, response, error, reward, time, numbers and states in their own fields', async () => {
      const { step } = await getProgram(3, common);
      expect(step).toMatchObject({
        stepNumber: 3n,
        actions: [{ type: 'code', content: { text: 'print(3)' } }],
        observations: [{ type: 'response', isError: true, content: { text: '1: (3,)' } }],
        reward: 3,
        metrics: { program_id: 3, token_usage: 103, depth: 0, ticks: 0, visits: 0 },
        endTime: { seconds: BigInt(Date.UTC(2025, 5, 4, 1, 12, 3) / 1000) },
      });
      expect(step?.infoJson).toBe(TREES[2]?.meta);
      expect(step?.states.map(({ name, mediaType }) => [name, mediaType])).toEqual([
        ['agent', 'application/json'],
        ['env', 'application/json'],
      ]);
      const other = await getProgram(4, common);
      expect(other.step?.observations[0]?.isError).toBe(false);
    });

    it('I3: keeps every value exactly, whatever the columns hold', async () => {
      const source = await newSource(engine);
      await source.insert(...EXTREMES);
      if (engine === 'sqlite') {
        await source.insert(...SQLITE_EXTREMES);
        await source.exec(NOT_UTF8);
      }
      const experiment = `values of ${engine}`;
      const { programs } = await runImport(source.source, experiment);
      expect(programs).toBe(EXTREMES.length + (engine === 'sqlite' ? SQLITE_EXTREMES.length : 0));
      expect(await expectAllValues(source, experiment)).toHaveLength(programs);
      const place = (await placesOf(experiment)).get(2)!;
      const { step } = await client.trajectories.getStep(place);
      expect(new TextDecoder().decode(await downloadState(client, place))).toBe(STATE_OF_TWO);
      expect(step?.infoJson).toBe('{"model": "m",  "n": 1.0}');
      expect(step?.reward).toBeUndefined();
    });

    it('numbers steps along the parents, whatever their depths and times are, and keeps the depths', async () => {
      const source = await newSource(engine);
      const chain = (id: number, parent_id: number | null, depth: number | null) => {
        return { id, parent_id, depth, instance: 0, created_at: `2025-06-04 01:12:0${9 - id}` };
      };
      await source.insert(
        ...[
          chain(1, null, 0.5),
          chain(2, 1, 0.5),
          chain(3, 2, 7),
          chain(4, 2, -1.25),
          chain(5, 3, 7),
          chain(6, 4, null),
        ],
      );
      const experiment = `depths of ${engine}`;
      await runImport(source.source, experiment);
      expect(await pathsOf(client, experiment)).toEqual({
        'fle-1, instance 0': [1, 2, 3, 5],
        'fle-1, instance 0, program 4': [1, 2, 4, 6],
      });
      const programs = await programsOf(client, experiment);
      expect(programs.map(({ stepNumber, metrics }) => [stepNumber, metrics.depth])).toEqual([
        [1n, 0.5],
        [2n, 0.5],
        [3n, 7],
        [3n, -1.25],
        [4n, 7],
        [4n, undefined],
      ]);
      expect(await expectAllValues(source, experiment)).toHaveLength(6);
    });

    it('I3: imports nothing twice, and appends programs added since', async () => {
      const source = await newSource(engine);
      await source.insert(...TREES.slice(0, 5));
      const experiment = `growth of ${engine}`;
      expect(await runImport(source.source, experiment)).toMatchObject({ programs: 5, imported: 5 });
      expect(await runImport(source.source, experiment)).toMatchObject({ programs: 5, imported: 0 });
      await source.insert(...TREES.slice(5));
      expect(await runImport(source.source, experiment)).toMatchObject({
        imported: 7,
        runs: [
          { runName: 'fle-1', imported: 3, trajectories: 0, branches: 1 },
          { runName: 'fle-2', imported: 4, trajectories: 1, branches: 2 },
        ],
      });
      expect(await pathsOf(client, experiment)).toEqual(PATHS);
      expect(await runImport(source.source, experiment)).toMatchObject({ programs: 12, imported: 0 });
      expect(await programsOf(client, experiment)).toHaveLength(12);
    });
  });

  it('branches from a trajectory that was sealed in the meantime', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES.slice(0, 2));
    await runImport(source.source, 'sealed');
    const [trajectory] = await trajectoriesOf(client, 'sealed');
    const { id: trajectoryId = '', writerEpoch = 0n } = trajectory ?? {};
    await client.trajectories.sealTrajectory({ trajectoryId, writerEpoch, seal: { status: Status.COMPLETED } });
    await source.insert(TREES[2]!);
    expect(await runImport(source.source, 'sealed')).toMatchObject({ imported: 1, runs: [{ branches: 1 }] });
    expect(await pathsOf(client, 'sealed')).toEqual({
      'fle-1, instance 0, process 0': [1, 2],
      'fle-1, instance 0, process 0, program 3': [1, 2, 3],
    });
  });

  it('does not change steps and branches that others added to its runs', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES.slice(0, 2));
    await runImport(source.source, 'shared');
    const [trajectory] = await trajectoriesOf(client, 'shared');
    const trajectoryId = trajectory?.id ?? '';
    await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'mine' });
    await source.insert(TREES[2]!);
    expect(await runImport(source.source, 'shared')).toMatchObject({ imported: 1 });
    expect(await pathsOf(client, 'shared')).toEqual({ 'fle-1, instance 0, process 0': [1, 2, 3], mine: [1] });
  });

  it('refuses another source whose programs have the same ids, and writes nothing', async () => {
    const [one, other] = [await newSource('sqlite'), await newSource('sqlite')];
    await one.insert(...TREES.slice(0, 2));
    await other.insert({ ...TREES[0]!, created_at: '2026-01-01 00:00:00' }, ...TREES.slice(1));
    await runImport(one.source, 'sources');
    const args = ['import-fle', other.source, '-e', 'sources', '--address', server.url];
    expect(await runCli(args)).toEqual({
      code: 1,
      stdout: '',
      stderr:
        'Run "fle-1" of experiment "sources" holds program 1 of another database: it was created at 2025-06-04T01:12:01.000Z ' +
        `there, and at 2026-01-01T00:00:00.000Z in SQLite ${other.source}. Choose another --experiment.\n`,
    });
    expect(await programsOf(client, 'sources')).toHaveLength(2);
    const { runs } = await client.runs.listRuns({ experimentName: 'sources' });
    expect(runs).toHaveLength(1);
  });

  // A real database: FLE_DB names it.
  const real = process.env.FLE_DB ? [process.env.FLE_DB] : [];
  for (const file of real) {
    it('imports the database that FLE_DB names, with every value', async () => {
      const { programs, imported } = await runImport(file, 'real');
      expect(programs).toBeGreaterThan(0);
      expect(imported).toBe(programs);
      expect(await expectAllValues({ engine: 'sqlite', source: file }, 'real')).toHaveLength(programs);
      expect(await runImport(file, 'real')).toMatchObject({ programs, imported: 0 });
    });
  }
});

describe('import-fle', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-fle-'));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  const target = (name: string) => `sqlite:${path.join(folder, name)}`;

  async function migratedTarget(): Promise<string> {
    const database = await createMigratedDatabase('sqlite');
    onTestFinished(() => database.drop());
    return database.url;
  }

  it('prints a table of the runs, and with --dry-run writes nothing', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES);
    const database = target('table.db');
    const args = ['import-fle', source.source, '--database', database];
    const missing = await runCli([...args, '--dry-run']);
    expect(missing.code).toBe(2);
    expect(missing.stderr).toContain('does not exist');
    expect((await runCli(['migrate', '--database', database, '--log-level', 'silent'])).code).toBe(0);
    const table = [
      'run      programs imported trajectories branches',
      'fle-1           8        8            2        2',
      'fle-2           4        4            1        2',
    ];
    const dry = await runCli([...args, '--dry-run']);
    expect(dry).toEqual({ code: 0, stdout: [...table, 'Nothing was written (--dry-run).', ''].join('\n'), stderr: '' });
    const json = JSON.parse((await runCli([...args, '--dry-run', '--json'])).stdout) as Imported;
    expect(json).toMatchObject({ dryRun: true, imported: 12, runs: [{ runId: '' }, { runId: '' }] });
    expect((await runCli(['runs', '--database', database])).stdout).toMatch(/^No runs yet/);
    const { code, stdout } = await runCli(args);
    expect(code).toBe(0);
    expect(stdout).toBe(
      [...table, `\`npm run -s anabranch -- runs -e fle --database ${database}\` lists the runs.`, ''].join('\n'),
    );
  });

  it('shows its progress on a terminal', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES);
    const args = ['import-fle', source.source, '--database', await migratedTarget()];
    const { code, stdout } = await runCli(args, { terminal: true, env: { NO_COLOR: '1' } });
    expect(code).toBe(0);
    expect(stdout).toMatch(/programs ━{24} 12 {2}of 12/);
    expect(stdout).toContain('\nfle-1 ');
  });

  it('says how to continue when it is interrupted', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES);
    const args = ['import-fle', source.source, '--database', await migratedTarget()];
    const interrupted = await runCli(args, { signal: AbortSignal.abort(new Error('SIGINT')) });
    const stderr = 'Interrupted. Run the command again to continue.\n';
    expect(interrupted).toEqual({ code: 1, stdout: '', stderr });
    expect((await runCli(args)).code).toBe(0);
  });

  it('says that a source has no programs', async () => {
    const source = await newSource('sqlite');
    const args = ['import-fle', source.source, '--database', target('empty.db')];
    expect(await runCli(args)).toEqual({ code: 0, stdout: 'The source has no programs.\n', stderr: '' });
  });

  it('reads a SQLite source without changing a byte or creating a file beside it', async () => {
    const source = await newSource('sqlite');
    await source.insert(...TREES);
    const contents = async () => {
      const files = await readdir(path.dirname(source.source));
      return [
        files,
        createHash('sha256')
          .update(await readFile(source.source))
          .digest('hex'),
      ];
    };
    const before = await contents();
    await runCli(['import-fle', source.source, '--database', await migratedTarget()]);
    expect(await contents()).toEqual(before);
  });

  it('reads a SQLite source in WAL mode while FLE writes to it', async () => {
    const source = await newSource('sqlite');
    await source.exec('PRAGMA journal_mode = WAL');
    await source.insert(...TREES);
    const writer = new DatabaseSync(source.source);
    writer.exec(`BEGIN IMMEDIATE; INSERT INTO programs (code, conversation_json) VALUES ('late', '{}')`);
    const { code, stdout } = await runCli([
      'import-fle',
      source.source,
      '--database',
      await migratedTarget(),
      '--json',
    ]);
    writer.exec('COMMIT');
    const [{ journal_mode } = {}] = writer.prepare('PRAGMA journal_mode').all();
    writer.close();
    expect({ code, journal_mode }).toEqual({ code: 0, journal_mode: 'wal' });
    expect(JSON.parse(stdout)).toMatchObject({ imported: 12 });
  });

  it.each<[string, () => Promise<string>, string]>([
    [
      'a file that does not exist',
      async () => '/nowhere/skills.db',
      'SQLite /nowhere/skills.db cannot be read: unable to open',
    ],
    ['a file that is not a database', () => textFile(), 'file is not a database'],
    ['a database of something else', () => fleFile('DROP TABLE programs'), 'it has no table "programs".'],
    [
      'a table that lacks columns',
      () => fleFile('ALTER TABLE programs DROP COLUMN meta; ALTER TABLE programs DROP COLUMN model'),
      'it lacks the columns model, meta in "programs".',
    ],
    [
      'programs that are their own ancestors',
      () => fleFile('UPDATE programs SET parent_id = 3 WHERE id = 1'),
      'is its own ancestor (parent_id)',
    ],
    [
      'a Postgres that does not answer',
      async () => 'postgres://ann:secret@127.0.0.1:1/fle',
      'Postgres postgres://ann@127.0.0.1:1/fle cannot be read',
    ],
  ])('explains %s in one line, and creates nothing', expectExplained);

  it.runIf(ON_POSTGRES)('explains a database of another program on Postgres in one line, and creates nothing', () =>
    expectExplained('another program', postgresUrl, 'it has no table "programs".'),
  );

  async function expectExplained(name: string, source: () => Promise<string>, words: string): Promise<void> {
    const database = target(`${name}.db`);
    const { code, stdout, stderr } = await runCli(['import-fle', await source(), '--database', database]);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).toContain(words);
    expect(stderr).not.toContain('secret');
    expect(stderr.trim().split('\n')).toHaveLength(1);
    const runs = await runCli(['runs', '--database', database]);
    expect(runs.stdout + runs.stderr).toMatch(/No runs yet|does not exist/);
  }

  async function textFile(): Promise<string> {
    const file = path.join(folder, 'text.db');
    await writeFile(file, 'hello, this is not a database at all');
    return file;
  }

  async function fleFile(change: string): Promise<string> {
    const source = await newSource('sqlite');
    await source.insert(...TREES);
    await source.exec(change);
    return source.source;
  }

  async function postgresUrl(): Promise<string> {
    const database = await createDatabase('postgres');
    onTestFinished(() => database.drop());
    return database.url;
  }
});
