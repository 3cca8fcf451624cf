import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient, reasonOf } from '../../src/client/index.ts';
import { createDatabase, ENGINES, type TestDatabase } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const FINE = [0, ''];

describe.each(ENGINES)('the keys of page tokens, on %s', (engine) => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-tokens-'));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  const place = (name: string) => path.join(folder, name);

  /** Creates trajectories, and returns a token for the second page of their list. `then` runs beside the server. */
  async function pageTokenOf(database: TestDatabase, then?: (address: string) => Promise<void>): Promise<string> {
    await using server = await startTestServer({ database });
    const client = connectClient({ address: server.url }, {});
    for (const name of ['a', 'b']) await client.trajectories.createTrajectory({ name });
    const { nextPageToken } = await client.trajectories.listTrajectories({ pageSize: 1 });
    await then?.(server.url);
    client.close();
    return nextPageToken;
  }

  /** Returns the names of a page, or the reason why there is none. */
  async function pageOf(database: Pick<TestDatabase, 'url'>, pageToken: string): Promise<readonly string[] | string> {
    await using server = await startTestServer({ database: database as TestDatabase });
    const client = connectClient({ address: server.url }, {});
    try {
      const { trajectories } = await client.trajectories.listTrajectories({ pageSize: 1, pageToken });
      return trajectories.map(({ name }) => name);
    } catch (error) {
      return String(reasonOf(error));
    } finally {
      client.close();
    }
  }

  it('RD12, V3: go with a reset, so no token of before is accepted by the new database', async () => {
    await using database = await createDatabase(engine);
    const token = await pageTokenOf(database);
    expect(await pageOf(database, token)).toEqual(['a']);
    expect((await runCli(['reset', '--yes', '--database', database.url])).code).toBe(0);
    expect(await pageOf(database, token)).toBe('INVALID_PAGE_TOKEN');
  });

  it('RD12, V7: are not copied to another database, whose rows have other keys', async () => {
    await using source = await createDatabase(engine);
    await using target = await createDatabase(engine);
    const token = await pageTokenOf(source);
    const { code } = await runCli(['migrate-data', '--from', source.url, '--to', target.url]);
    expect(code).toBe(0);
    expect(await pageOf(target, token)).toBe('INVALID_PAGE_TOKEN');
    expect(await pageOf(source, token)).toEqual(['a']);
  });

  it.runIf(engine === 'sqlite')('RD12, V2: are in a backup, so a token of before works after its restore', async () => {
    await using database = await createDatabase(engine);
    const file = place('backup.db');
    const token = await pageTokenOf(database, async (address) => {
      const { code, stderr } = await runCli(['backup', file, '--address', address]);
      expect([code, stderr]).toEqual(FINE);
    });
    const restored = { url: `sqlite:${place('restored.db')}` };
    const { code, stderr } = await runCli(['restore', file, '--database', restored.url]);
    expect([code, stderr]).toEqual(FINE);
    expect(await pageOf(restored, token)).toEqual(['a']);
  });
});
