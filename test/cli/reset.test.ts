import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { sqlitePath } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch reset, on %s', (engine) => {
  it('V3, C-06: refuses while the database is served, asks, and then deletes everything', async () => {
    await using database = await createMigratedDatabase(engine);
    const reset = (...flags: string[]) => runCli(['reset', '--database', database.url, ...flags]);
    const server = await startTestServer({ database });
    const client = connectClient({ address: server.url });
    await client.trajectories.createTrajectory({ name: 'kept until the end' });
    client.close();
    const served = await reset('--yes');
    expect([served.code, served.stderr]).toEqual([1, expect.stringMatching(/in use by process|being served/)]);
    await server.stop();
    const unanswered = await reset();
    expect([unanswered.code, unanswered.stderr]).toEqual([2, expect.stringContaining('pass --yes')]);
    expect(await namesIn(database.url)).toEqual(['kept until the end']);
    const { code, stdout } = await reset('--yes');
    expect([code, stdout]).toEqual([0, expect.stringContaining('Deleted everything in ')]);
    if (engine === 'sqlite') {
      const file = sqlitePath(database);
      const left = await readdir(path.dirname(file));
      expect(left.filter((name) => name.startsWith(path.basename(file)))).toEqual([]);
      const again = await reset('--yes');
      expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('does not exist')]);
    }
    expect(await namesIn(database.url, true)).toEqual([]);
  });
});

/** Names of all trajectories. With `isNew`, the database is created. */
async function namesIn(url: string, isNew = false): Promise<string[]> {
  if (isNew) await runCli(['migrate', '--database', url]);
  const { code, stdout } = await runCli(['tree', '--json', '--database', url]);
  expect(code).toBe(0);
  return [...stdout.matchAll(/"name":\s*"([^"]*)"/g)].map(([, name]) => name ?? '');
}
