import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { outsideSql, sqlitePath } from '../store/sql.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6d';

describe('anabranch verify', () => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite' });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    await client.trajectories.createTrajectory({ trajectoryId: ID });
    const writer = await openWriter(client, { trajectoryId: ID });
    for (let i = 0; i < 3; i += 1) await writer.append({ reward: i, states: { env: Buffer.alloc(5000, i) } });
    await writer.close();
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('V1: an intact database has no faults, and the exit code is 0', async () => {
    const { code, stdout, stderr } = await runCli(['verify', ...at]);
    expect([code, stdout, stderr]).toEqual([0, 'Read 3 steps and 3 states: no faults.\n', '']);
    const json = await runCli(['verify', '--json', ...at]);
    expect(JSON.parse(json.stdout)).toEqual({ steps: '3', states: '3', found: 0, faults: [] });
    const terminal = await runCli(['verify', ...at], { terminal: true });
    expect(terminal.stdout).toContain('rows');
    expect(terminal.stdout).toContain('of 6');
  });

  it('V1: prints the faults of a damaged database, and the exit code is 1', async () => {
    const sql = await outsideSql(server.database);
    await sql.rows(`update segments set checksum = checksum + 1 where first_step_number <= 1 and next_step_number > 1`);
    await sql.close();
    const { code, stdout, stderr } = await runCli(['verify', ...at]);
    expect(code).toBe(1);
    expect(stdout).toMatch(new RegExp(`STEPS +trajectory ${ID}, steps? .*checksum`));
    expect(stdout).toContain('Read 3 steps and 3 states: 1 fault.\n');
    expect(stderr).toContain('docs/operations.md');
    const json = await runCli(['verify', '--json', ...at]);
    expect([json.code, JSON.parse(json.stdout)]).toMatchObject([
      1,
      { found: 1, faults: [{ check: 'STORAGE_CHECK_STEPS', namespace: 'default', trajectoryId: ID }] },
    ]);
  });

  it('V1: a database that no server uses is verified without a server, with the same result', async () => {
    const served = await runCli(['verify', '--json', ...at]);
    await server.drain();
    const before = await readFile(sqlitePath(server.database));
    const { code, stdout } = await runCli(['verify', '--json', '--database', server.database.url]);
    expect([code, JSON.parse(stdout)]).toEqual([1, JSON.parse(served.stdout)]);
    expect(Buffer.compare(await readFile(sqlitePath(server.database)), before)).toBe(0);
    const text = await runCli(['verify', '--database', server.database.url]);
    expect(text.stdout).toMatch(/^STEPS /);
  });

  it('does not create a database that does not exist', async () => {
    const { code, stderr } = await runCli(['verify', '--database', 'sqlite:missing.db']);
    expect([code, stderr]).toEqual([2, expect.stringContaining('does not exist')]);
  });
});
