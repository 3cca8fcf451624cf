import { expect, it, vi } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { outsideSql } from '../store/sql.ts';
import { dose } from '../support/dose.ts';
import { fill } from '../support/filled.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';
import { spawnMergingServer } from './spawn-merging.ts';

const KILLS = dose(1, 5);
/** MiB that are deleted before each kill, and that stay. Merged rows have half of it. */
const DELETED = 32;
const KEPT = 2;
/** MiB that may stay free, and a little more. */
const MOST_FREE = 9;
const PAGES_PER_MIB = 256;

it('V3: no kill -9 while free space is returned damages the database, and the next process returns the rest', async () => {
  const random = seededRandom();
  await using database = await createMigratedDatabase('sqlite');
  const sql = await outsideSql(database);
  const pages = async (name: 'page_count' | 'freelist_count') => Number((await sql.rows(`pragma ${name}`))[0]![name]);
  const below = (count: number) =>
    vi.waitFor(async () => expect(await pages('page_count')).toBeLessThan(count), { timeout: 60_000, interval: 1 });
  let returned = 0;
  for (let kill = 1; kill <= KILLS; kill += 1) {
    await using server = await spawnMergingServer({ database: database.url });
    const client = connectClient({ address: server.url });
    // Both write at the same time, so that pages that stay have to be moved.
    const [deleted] = await Promise.all([fill(client, DELETED), fill(client, KEPT)]);
    const most = await pages('page_count');
    await client.trajectories.deleteTrajectory({ trajectoryId: deleted });
    await below(most - random.between(0, (DELETED / 4) * PAGES_PER_MIB));
    await server.kill();
    client.close();
    returned += most - (await pages('page_count'));
  }
  await using last = await spawnMergingServer({ database: database.url });
  const client = connectClient({ address: last.url });
  await below((KEPT * KILLS + MOST_FREE) * PAGES_PER_MIB);
  await requireIntact(client);
  const { trajectories } = await client.trajectories.listTrajectories({});
  expect(trajectories.map(({ nextStepNumber }) => nextStepNumber)).toEqual(
    Array.from({ length: KILLS }, () => BigInt(KEPT * 4)),
  );
  const [check] = await sql.rows('pragma integrity_check');
  expect(check).toEqual({ integrity_check: 'ok' });
  client.close();
  await sql.close();
  reportFigures('kill -9 while free space is returned', {
    kills: KILLS,
    'pages returned before': returned,
    damaged: 0,
  });
});
