import { describe, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { killServer } from './kill-server.ts';

describe.each(ENGINES)('kill -9 of the server on %s', (engine) => {
  it('D1, D2, O1, I1, R1, R2: 20 kills in mid-stream lose nothing acked, double nothing, and leave no gap', async () => {
    await killServer(engine, 20);
  });
});
