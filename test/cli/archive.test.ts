import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { copyStore } from '../../src/store/copy.ts';
import { openOn } from '../store/on_store.ts';
import { RunScene } from '../store/run_scene.ts';
import { sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { createDatabase, ON_POSTGRES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6d';

const RUN = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6e';

describe('anabranch export and import', () => {
  let server: TestServer;
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-archive-'));
    server = await startTestServer();
    const client = connectClient({ address: server.url });
    const writer = await openWriter(client, { trajectoryId: ID, create: { trajectory: {} } });
    for (let i = 0; i < 3; i += 1) await writer.append({ reward: i, states: { env: Buffer.alloc(700_000, i) } });
    await writer.close();
    await client.runs.createRun({ runId: RUN, name: 'run' });
    client.close();
  });
  afterAll(async () => {
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const place = (name: string) => path.join(folder, name);

  it.each([
    ['everything', []],
    ['a trajectory', ['--trajectory', ID]],
  ])('V5, F-19: %s is exported, imported on another database, and skipped the second time', async (what, flags) => {
    const file = place(`${what}.tar.zst`);
    const out = await runCli(['export', file, ...flags, '--address', server.url]);
    expect([out.code, out.stderr, out.stdout]).toEqual([0, '', expect.stringContaining('has 3 steps, ')]);
    const database = `sqlite:${place(`${what}.db`)}`;
    const first = await runCli(['import', file, '--database', database]);
    expect([first.code, first.stderr]).toEqual([0, '']);
    expect(first.stdout).toContain('Imported 1 trajectory with 3 steps, ');
    const second = await runCli(['import', file, '--database', database, '--json']);
    expect(JSON.parse(second.stdout)).toMatchObject({ trajectories: '0', presentTrajectories: '1', leftOutIds: [] });
    expect((await runCli(['verify', '--database', database])).stdout).toContain('no faults');
    const again = await runCli(['export', file, '--address', server.url]);
    expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('exists already')]);
  });

  it.each([
    ['everything', []],
    ['a trajectory', ['--trajectory', ID]],
    ['a run', ['--run', RUN]],
  ])('F-19: the export of %s to a terminal shows how many steps are done', async (what, flags) => {
    const file = place(`bar ${what}.tar.zst`);
    const out = await runCli(['export', file, ...flags, '--address', server.url], { terminal: true });
    expect([out.code, out.stdout]).toEqual([
      0,
      expect.stringMatching(what === 'a run' ? / steps .* of 0/ : / of [35]/),
    ]);
  });

  it('V6: a file that is cut off is refused, and imports nothing of a trajectory', async () => {
    const file = place('short.tar.zst');
    await runCli(['export', file, '--address', server.url]);
    await truncate(file, (await readFile(file)).length - 100);
    const database = `sqlite:${place('short.db')}`;
    const { code, stderr } = await runCli(['import', file, '--database', database]);
    expect([code, stderr]).toEqual([1, expect.stringContaining('cut off')]);
    await writeFile(place('text.tar.zst'), 'no archive');
    const text = await runCli(['import', place('text.tar.zst'), '--database', database]);
    expect([text.code, text.stderr]).toEqual([1, expect.stringContaining('no zstd')]);
    const missing = await runCli(['import', place('missing.tar.zst'), '--database', database]);
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('cannot be read')]);
    expect((await runCli(['verify', '--database', database])).stdout).toContain('no faults');
  });

  it('V5: a run is exported by its name, and the database of another server gets it into the experiment of that name', async () => {
    const file = place('named.tar.zst');
    const database = `sqlite:${place('named.db')}`;
    await using other = await startTestServer();
    const client = connectClient({ address: other.url });
    const { run: own } = await client.runs.createRun({ name: 'own' });
    const exported = await runCli(['export', file, '--run', 'run', '-e', 'default', '--address', server.url]);
    expect([exported.code, exported.stdout]).toEqual([0, expect.stringContaining(' has 0 steps, ')]);
    const imported = await runCli(['import', file, '--address', other.url]);
    expect([imported.code, imported.stderr]).toEqual([0, '']);
    expect(imported.stdout).toBe(
      'Imported 0 trajectories with 0 steps, 1 run and 0 rollouts. Stored already: 0 trajectories.\n',
    );
    const { run } = await client.runs.getRun({ runId: RUN });
    expect([run?.name, run?.experimentId, run?.number]).toEqual(['run', own?.experimentId, 2n]);
    client.close();
    const none = await runCli(['export', place('none.tar.zst'), '--run', 'none', '--address', server.url]);
    expect([none.code, none.stderr]).toEqual([1, expect.stringContaining('No run has the name "none".')]);
    expect((await runCli(['import', file, '--database', database])).code).toBe(0);
  });

  it('V5: an export of what does not exist leaves no file', async () => {
    const { code, stderr } = await runCli(['export', place('none.tar.zst'), '--run', ID, '--address', server.url]);
    expect([code, stderr]).toEqual([1, expect.stringContaining(ID)]);
    expect(await readdir(folder)).not.toContain('none.tar.zst');
  });
});

describe('anabranch migrate-data', () => {
  it('names the flag of a database that cannot be opened', async () => {
    await using text = await createDatabase('sqlite');
    await using target = await createDatabase('sqlite');
    await writeFile(sqlitePath(text), 'not a database');
    const { code, stderr } = await runCli(['migrate-data', '--from', text.url, '--to', target.url]);
    expect([code, stderr]).toEqual([1, expect.stringContaining('(The database was chosen by --from.)')]);
    expect(existsSync(sqlitePath(target))).toBe(false);
  });

  describe.runIf(ON_POSTGRES)('to a database on Postgres', () => {
    it('V7: all namespaces are copied, or those that are named, and an unknown one is refused', async () => {
      await using source = await createMigratedDatabase('sqlite');
      await using some = await createDatabase('postgres');
      const store = await openOn(source);
      for (const namespace of ['ann', 'bob', 'eve']) await new RunScene(store, namespace).createWith(['a', 'b']);
      await new RunScene(store, 'zoe').experiment();
      await store.close();
      const copy = async (...flags: string[]) => {
        const out = await runCli(['migrate-data', '--from', source.url, '--to', some.url, '--json', ...flags]);
        return { ...out, counts: out.code === 0 ? JSON.parse(out.stdout) : undefined };
      };
      const none = await copy('--namespace', 'ann', 'nobody');
      expect([none.code, none.stderr]).toEqual([1, expect.stringContaining('--namespace is "nobody"')]);
      expect((await copy('--namespace', 'bob')).counts).toMatchObject({ namespaces: '1', trajectories: '1' });
      expect((await copy()).counts).toMatchObject({ namespaces: '4', trajectories: '3', identical: '3' });
      const there = await openOn(some);
      expect(await there.listNamespaces()).toEqual(['ann', 'bob', 'eve', 'zoe']);
      await expectVerified(there);
      await there.close();
    });
  });

  it('V7: progress counts the steps that are copied, and again those that are compared', async () => {
    await using first = await createMigratedDatabase('sqlite');
    await using second = await createMigratedDatabase('sqlite');
    const [source, target] = [await openOn(first), await openOn(second)];
    const words = Array.from({ length: 4000 }, (_, i) => `${i}`);
    for (const namespace of ['ann', 'bob']) await new RunScene(source, namespace).createWith(words);
    for (const pass of ['a copy', 'a repeated copy']) {
      const done: bigint[] = [];
      for await (const { doneSteps, totalSteps } of copyStore(source, target, ['ann', 'bob'])) {
        expect(totalSteps).toBe(16_000n);
        done.push(doneSteps);
      }
      expect(done, pass).toEqual(done.toSorted((a, b) => (a < b ? -1 : 1)));
      expect(new Set(done).size, pass).toBeGreaterThan(8);
      expect([done[0], done.at(-1)], pass).toEqual([0n, 16_000n]);
      expect(
        done.some((each) => each > 8000n && each < 16_000n),
        pass,
      ).toBe(true);
    }
    await source.close();
    await target.close();
  });

  it('V7: a password in a URL causes a warning that names what the command reads', async () => {
    await using source = await createMigratedDatabase('sqlite');
    const url = 'postgres://ann:secret@127.0.0.1:1/none';
    await (await openOn(source)).close();
    const { code, stderr } = await runCli(['migrate-data', '--from', source.url, '--to', url]);
    expect([code, stderr]).toEqual([1, expect.stringMatching(/^anabranch: --to holds a password, .* set PGPASSWORD/)]);
    expect(stderr).not.toContain('DATABASE_URL instead');
    expect(stderr).not.toContain('secret');
  });

  it('V7: a served database, a missing one, and the same one as source and target are refused', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const copy = `${database.url}.copy`;
    const missing = await runCli(['migrate-data', '--from', 'sqlite:/nowhere/data.db', '--to', copy]);
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('does not exist')]);
    const server = await startTestServer({ database });
    try {
      const served = await runCli(['migrate-data', '--from', database.url, '--to', copy]);
      expect([served.code, served.stderr]).toEqual([1, expect.stringContaining('in use')]);
    } finally {
      await server.stop();
    }
    const twice = await runCli(['migrate-data', '--from', database.url, '--to', database.url]);
    expect([twice.code, twice.stderr]).toEqual([2, expect.stringContaining('the same database')]);
  });
});
