import { copyFile, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { outsideSql } from '../store/sql.ts';
import type { TestDatabase } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6c';

describe('anabranch backup and restore', () => {
  let server: TestServer;
  let client: AnabranchClient;
  let folder: string;
  let backup: string;

  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-restore-'));
    backup = path.join(folder, 'backup.db');
    server = await startTestServer();
    client = connectClient({ address: server.url });
    const writer = await openWriter(client, { trajectoryId: ID, create: { trajectory: {} } });
    for (let i = 0; i < 3; i += 1) await writer.append({ reward: i, states: { env: Buffer.alloc(5000, i) } });
    await writer.close();
    const { code, stdout, stderr } = await runCli(['backup', backup, '--address', server.url]);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toContain(`${backup} has the database, `);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const place = (name: string) => path.join(folder, name);
  const restore = (file: string, name: string) => runCli(['restore', file, '--database', `sqlite:${place(name)}`]);

  it('V2, F-20: a backup is restored at another place, verified, with all its data', async () => {
    const { code, stdout, stderr } = await restore(backup, 'new/data.db');
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toContain('3 steps and 3 states, all intact');
    expect(await readdir(place('new'))).toEqual(['data.db']);
    const steps = await runCli(['steps', ID, '--json', '--database', `sqlite:${place('new/data.db')}`]);
    expect(steps.stdout.trim().split('\n')).toHaveLength(3);
  });

  it('V2: neither command replaces a file', async () => {
    const before = await readFile(backup);
    const again = await runCli(['backup', backup, '--address', server.url]);
    expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('exists already')]);
    await writeFile(place('taken.db'), 'mine');
    const taken = await restore(backup, 'taken.db');
    expect([taken.code, taken.stderr]).toEqual([1, expect.stringContaining('exists already')]);
    expect(await readFile(place('taken.db'), 'utf8')).toBe('mine');
    await writeFile(place('rest.db-wal'), 'of another database');
    const rest = await restore(backup, 'rest.db');
    expect([rest.code, rest.stderr]).toEqual([1, expect.stringContaining('belongs to another database')]);
    expect(Buffer.compare(await readFile(backup), before)).toBe(0);
  });

  it('V2: a damaged, truncated or foreign file is not restored, and nothing is left over', async () => {
    const damaged = place('damaged.db');
    await copyFile(backup, damaged);
    const sql = await outsideSql({ engine: 'sqlite', url: `sqlite:${damaged}` } as TestDatabase);
    await sql.rows('update segments set checksum = checksum + 1');
    await sql.close();
    const short = place('short.db');
    await copyFile(backup, short);
    await truncate(short, 50_000);
    const foreign = place('foreign.db');
    await writeFile(foreign, 'not a database');
    for (const [file, message] of [
      [damaged, 'checksum'],
      [short, `${short} was not restored: `],
      [foreign, `${foreign} was not restored: it is not a SQLite database. Use another backup.`],
      [place('missing.db'), 'does not exist'],
    ] as const) {
      const { code, stderr } = await restore(file, 'result.db');
      expect(code).not.toBe(0);
      expect(stderr).toContain(message);
      expect(stderr).not.toContain('Internal error');
      // The operator has named neither the copy nor the database that is read.
      expect(stderr).not.toMatch(/\.part|DATABASE_URL|--database/);
      expect((await readdir(folder)).filter((name) => name.startsWith('result'))).toEqual([]);
    }
  });

  it('says what to do with a database of Postgres', async () => {
    const { code, stderr } = await runCli(['restore', backup, '--database', 'postgres://localhost/data']);
    expect([code, stderr]).toEqual([2, expect.stringContaining('pg_restore')]);
  });
});
