import { expect, it } from 'vitest';
import { killPostgres } from '../faults/postgres/killing.ts';
import { A1_MS } from '../faults/postgres/outage.ts';
import { seededRandom } from '../faults/random.ts';
import { ON_POSTGRES } from '../support/database.ts';

it.runIf(ON_POSTGRES)('D1, A1: kill -9 on Postgres, a short version of the proof in npm run test:faults', async () => {
  const random = seededRandom();
  const survived = await killPostgres({ kills: 1, writers: 4, random });
  expect(survived, `seed ${random.seed}`).toMatchObject({
    lost: 0,
    faults: [],
    failures: [],
    serverLived: true,
    serverFaults: [],
  });
  expect(survived.answers.filter(({ objection, ms }) => objection !== undefined || ms > A1_MS)).toEqual([]);
  expect(survived.inFlight).toBeGreaterThan(0);
});
