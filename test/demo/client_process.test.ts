import process from 'node:process';
import { afterAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { playInProcess } from '../../src/demo/episode.ts';
import type { DemoEvent } from '../../src/demo/events.ts';
import { playAllVariants } from '../../src/demo/variants.ts';
import { startTestServer } from '../support/test-server.ts';

const TASK = { trajectoryId: 'none' };
const client = connectClient({ address: '127.0.0.1:1' });
afterAll(() => client.close());

/** Plays with a program in place of the variant's client: Node running one line. The task follows as an argument. */
async function played(text: string, clientCommand = [process.execPath, '-e', text]) {
  const events: DemoEvent[] = [];
  const { signal } = new AbortController();
  const onEvent = (event: DemoEvent) => void events.push(event);
  return { last: await playInProcess(TASK, { client, seed: 7, clientCommand, onEvent, signal }), events };
}

describe('the process of a client', () => {
  it('receives its task with the address of the server, and sends its events in order', async () => {
    const { last, events } = await played(
      `const task = JSON.parse(process.argv[1]);
        for (const stepNumber of [1, 2]) console.log(JSON.stringify([{ event: 'step', stepNumber, ...task }]))`,
    );
    const task = { ...TASK, address: client.url, pid: expect.any(Number) };
    expect(events).toEqual([1, 2].map((stepNumber) => ({ event: 'step', stepNumber, ...task })));
    expect(last).toBeUndefined();
  });

  it('that fails reports its exit and its error output', async () => {
    const failed = played(`console.error('no cart here'); process.exit(3)`);
    await expect(failed).rejects.toThrow('ended with code 3: no cart here');
  });

  it('that cannot be started causes an error', async () => {
    const failed = played('', ['/nowhere/anabranch']);
    await expect(failed).rejects.toThrow(/ended with an error \(spawn \/nowhere\/anabranch ENOENT\)/);
  });

  it('that hangs is killed, and has exited when its last event is returned', async () => {
    const hangs = `console.log(JSON.stringify([{ event: 'hanging', turns: 3 }])); setInterval(() => {}, 1000)`;
    const { last, events } = await played(hangs);
    expect(last).toEqual({ event: 'hanging', turns: 3, pid: expect.any(Number) });
    expect(events).toEqual([]);
    expect(() => process.kill(Number(last?.pid), 0)).toThrow(/ESRCH/);
  });

  it('that fails makes the demo fail, which stops the other variants at once', async () => {
    await using server = await startTestServer();
    const client = connectClient({ address: server.url });
    const events: DemoEvent[] = [];
    const clientCommand = [process.execPath, '-e', `console.error('no cart here'); process.exit(3)`];
    const { signal } = new AbortController();
    const demo = playAllVariants({ client, seed: 7, clientCommand, onEvent: (event) => events.push(event), signal });
    await expect(demo).rejects.toThrow('ended with code 3: no cart here');
    expect(events.filter(({ event }) => event === 'replayed')).toEqual([]);
    client.close();
  });
});
