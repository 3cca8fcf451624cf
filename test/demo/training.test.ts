import process from 'node:process';
import { expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import type { DemoEvent } from '../../src/demo/events.ts';
import { runTraining } from '../../src/demo/training.ts';
import { startTestServer } from '../support/test-server.ts';

it('a worker that fails makes the training fail at once, with its error', async () => {
  await using server = await startTestServer();
  const client = connectClient({ address: server.url });
  const events: DemoEvent[] = [];
  const clientCommand = [process.execPath, '-e', `console.error('no cart here'); process.exit(3)`];
  const { signal } = new AbortController();
  const onEvent = (event: DemoEvent) => void events.push(event);
  const training = runTraining({ client, seed: 7, clientCommand, onEvent, signal });
  await expect(training).rejects.toThrow('ended with code 3: no cart here');
  expect(events.map(({ event }) => event)).not.toContain('stage');
  client.close();
});
