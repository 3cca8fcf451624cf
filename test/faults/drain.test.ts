import { describe, expect, it } from 'vitest';
import { outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { freePort } from '../support/free_port.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { reportFigures } from './figures.ts';
import { checkHistory } from './history/check.ts';
import { Load } from './history/load.ts';
import { collectStored } from './history/stored.ts';
import { figuresOf } from './kill-server.ts';
import { seededRandom } from './random.ts';
import { countMergedRows, spawnMergingServer } from './spawn-merging.ts';

const DRAINS = dose(1, 5);

describe.each(ENGINES)('SIGTERM under load on %s', (engine) => {
  it('A2, D1, R2: each time, no helper reports an error, no stream ends without a status, and every acked step is stored', async () => {
    const random = seededRandom();
    await using database = await createMigratedDatabase(engine);
    const listen = `127.0.0.1:${await freePort()}`;
    let server = await spawnMergingServer({ database: database.url, listen });
    // Each helper has a trajectory of its own and lives through all drains; any error it reports is caused by a drain.
    using load = await Load.start({
      addresses: [listen],
      random,
      rawWriters: 0,
      stepsALife: [1_000_000, 1_000_000],
    });
    using raw = await Load.start({ addresses: [listen], random, branches: 4, helperWriters: 0, readers: 0 });
    const ends: { code: number | null; ms: number; inFlight: number }[] = [];
    try {
      for (let drain = 0; drain < DRAINS; drain += 1) {
        await Promise.all([load.moreAcks(random.between(100, 400)), raw.moreAcks(50)]);
        const began = performance.now();
        const ended = server.terminate();
        const { inFlight } = load.history;
        const { code } = await ended;
        ends.push({ code, ms: Math.round(performance.now() - began), inFlight });
        server = await spawnMergingServer({ database: database.url, listen });
      }
      await Promise.all([load.moreAcks(100), raw.moreAcks(20)]);
      await Promise.all([load.finish(), raw.finish()]);
      const stored = await collectStored(load.client, database);
      const sql = await outsideSql(database);
      const mergedRows = await countMergedRows(sql).finally(() => sql.close());
      const violations = [load, raw].flatMap(({ history, trunk, branches }) => {
        const own = new Set([trunk, ...branches, ...history.branchings.map(({ branch }) => branch)]);
        return checkHistory(history, new Map([...stored].filter(([id]) => own.has(id))));
      });
      reportFigures(`SIGTERM under load on ${engine}`, {
        seed: random.seed,
        drains: DRAINS,
        ...figuresOf(load.history, violations),
        'errors shown': load.history.surprises.length,
        'least in flight at a drain': Math.min(...ends.map((end) => end.inFlight)),
        'slowest exit, ms': Math.max(...ends.map(({ ms }) => ms)),
        'rows that were merged': mergedRows,
        'streams without a helper that were drained': raw.history.streamEnds.get('SERVER_DRAINING') ?? 0,
      });
      expect(violations).toEqual([]);
      expect(mergedRows).toBeGreaterThan(0);
      expect([...load.history.surprises, ...raw.history.surprises]).toEqual([]);
      expect(ends.map(({ code }) => code)).toEqual(ends.map(() => 0));
      expect(Math.max(...ends.map(({ ms }) => ms))).toBeLessThan(30_000);
      expect(Math.min(...ends.map((end) => end.inFlight))).toBeGreaterThan(0);
      expect([...raw.history.streamEnds.keys()].sort()).toEqual(['SERVER_DRAINING']);
    } finally {
      load.close();
      raw.close();
      await server.kill();
    }
  });
});
