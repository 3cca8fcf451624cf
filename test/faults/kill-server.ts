import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'vitest';
import { createDatabase, type Engine } from '../support/database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { reportFigures } from './figures.ts';
import { checkHistory, unknownButStored } from './history/check.ts';
import { Load } from './history/load.ts';
import { collectStored } from './history/stored.ts';
import { seededRandom } from './random.ts';

/** SIGKILLs the server again and again while 16 writers of 8 branches are in mid-stream, and holds what is stored against what they were told. */
export async function killServer(engine: Engine, kills: number): Promise<void> {
  const random = seededRandom();
  await using database = await createDatabase(engine);
  let server = await spawnServer({ database: database.url });
  const listen = `127.0.0.1:${server.port}`;
  let [leastInFlight, slowestStart] = [Number.POSITIVE_INFINITY, 0];
  using load = await Load.start({ addresses: [listen], random });
  try {
    for (let kill = 0; kill < kills; kill += 1) {
      await load.moreAcks(random.between(100, 600));
      await delay(random.between(0, 20));
      const killed = server.kill();
      leastInFlight = Math.min(leastInFlight, load.history.inFlight);
      await killed;
      const began = performance.now();
      server = await spawnServer({ database: database.url, listen });
      slowestStart = Math.max(slowestStart, performance.now() - began);
    }
    await load.moreAcks(200);
    await load.finish();
    const { history } = load;
    const stored = await collectStored(load.client, database);
    const violations = checkHistory(history, stored);
    const found = history.foundStored + unknownButStored(history, stored);
    await reportFigures(`kill -9 of the server on ${engine}`, {
      seed: random.seed,
      kills,
      'acked steps checked': history.acked,
      lost: violations.filter(({ rule }) => rule === 'C1').length,
      'least in flight at a kill': leastInFlight,
      'unacked but stored': found,
      'take-overs': history.grants.length,
      'steps followed': history.follows.reduce((sum, { got }) => sum + got.length, 0),
      'reads checked': history.reads.length,
      'branches and seals checked': history.branchings.length + history.sealings.length,
      'slowest start, ms': Math.round(slowestStart),
    });
    expect(violations.slice(0, 20)).toEqual([]);
    expect(history.surprises).toEqual([]);
    expect(leastInFlight, 'a kill with nothing in flight proves nothing').toBeGreaterThan(0);
    expect(found, 'if nothing unacked was stored, no kill came between a commit and its ack').toBeGreaterThan(0);
  } finally {
    load.close();
    await server.kill();
  }
}
