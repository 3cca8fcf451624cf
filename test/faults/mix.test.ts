import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { reportFigures } from './figures.ts';
import type { Mix } from './mix/mix.ts';
import { read, readAll } from './mix/reader.ts';
import { write } from './mix/writer.ts';
import { seededRandom } from './random.ts';
import { spawnMergingServer } from './spawn-merging.ts';
import { requireIntactDatabase } from './stopped-database.ts';

const KILLS = dose(1, 4);
/** Calls before each kill. */
const CALLS = dose<readonly [number, number]>([150, 300], [300, 600]);
/** Calls after the last kill. */
const LAST_CALLS = dose(150, 600);
const WRITERS = 8;
const READERS = 8;

describe.each(ENGINES)(
  'creates, branches, appends, attachments, seals, uploads and deletes concurrent with reads, with kills, on %s',
  (engine) => {
    it('D1, O1, O2, R1: every read that is answered OK is complete, and acked data is stored unless its deletion was started', async () => {
      const random = seededRandom();
      await using database = await createMigratedDatabase(engine);
      let server = await spawnMergingServer({ database: database.url });
      await using proxy = await startTcpProxy(server);
      const client = connectClient({ address: proxy.url });
      const mix: Mix = {
        client,
        random,
        nodes: [],
        violations: [],
        counts: new Map(),
        unansweredReads: 0,
        stopped: false,
      };
      const work = [
        ...Array.from({ length: WRITERS }, () => write(mix)),
        ...Array.from({ length: READERS }, () => read(mix)),
      ];
      try {
        for (let kill = 0; kill < KILLS && mix.violations.length === 0; kill += 1) {
          await moreDone(mix, random.between(...CALLS));
          await server.kill();
          await requireIntactDatabase(database);
          server = await spawnMergingServer({ database: database.url });
          proxy.retarget(server);
        }
        await moreDone(mix, LAST_CALLS);
      } finally {
        mix.stopped = true;
        await Promise.all(work);
      }
      try {
        await readAll(mix);
        await requireIntact(client);
        const deleted = mix.nodes.filter(({ deletion }) => deletion === 'answered').length;
        reportFigures(`mix of all writes on ${engine}`, {
          seed: random.seed,
          kills: KILLS,
          trajectories: mix.nodes.length,
          'of these deleted': deleted,
          ...Object.fromEntries([...mix.counts].sort()),
          'reads without an answer': mix.unansweredReads,
          violations: mix.violations.length,
        });
        expect(mix.violations.slice(0, 20)).toEqual([]);
        expect(deleted).toBeGreaterThan(0);
        expect(mix.nodes.length - deleted).toBeGreaterThan(0);
      } finally {
        client.close();
        await server.kill();
      }
    });
  },
);

/** Resolves when this many more calls were answered, or a violation was found. */
async function moreDone(mix: Mix, calls: number): Promise<void> {
  const done = () => [...mix.counts.values()].reduce((sum, each) => sum + each, 0);
  const enough = done() + calls;
  while (done() < enough && mix.violations.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
}
