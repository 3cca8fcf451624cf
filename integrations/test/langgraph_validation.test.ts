import { randomUUID } from 'node:crypto';
import { deltaChannelHistoryTests, specTest } from '@langchain/langgraph-checkpoint-validation';
import { afterAll, describe } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../../test/support/database.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';
import { serving } from './served.ts';

describe.each(ENGINES)('the validation suite of LangGraph.js on %s', (engine) => {
  const served = serving(engine);
  const clients: AnabranchClient[] = [];
  const initializer = {
    checkpointerName: 'anabranch/langgraph',
    // Each suite has a namespace of its own: it lists all checkpoints, and expects its own.
    async createCheckpointer() {
      const client = connectClient({ address: served.url, namespace: randomUUID() });
      clients.push(client);
      return new AnabranchSaver(client);
    },
  };
  afterAll(() => {
    for (const client of clients) client.close();
  });

  specTest(initializer);
  deltaChannelHistoryTests(initializer);
});
