import process from 'node:process';
import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { startClientProcess } from '../../src/demo/client_process.ts';
import type { DemoEvent } from '../../src/demo/events.ts';
import { playAllVariants } from '../../src/demo/variants.ts';
import { startTestServer } from '../support/test-server.ts';

const TASK = { trajectoryId: 'none' };
/** A program in place of the variant's client: Node running one line. The task follows as an argument. */
const script = (text: string) => ({ clientCommand: [process.execPath, '-e', text], signal });
const { signal } = new AbortController();

describe('the process of a client', () => {
  it('receives its task, and sends its reports in order', async () => {
    const child = startClientProcess<object>(
      TASK,
      script(`const { trajectoryId } = JSON.parse(process.argv[1]);
        for (const stepNumber of [1, 2]) console.log(JSON.stringify({ event: 'step', stepNumber, trajectoryId }))`),
    );
    const reports: object[] = [];
    for await (const report of child.reports) reports.push(report);
    expect(reports).toEqual([1, 2].map((stepNumber) => ({ event: 'step', stepNumber, trajectoryId: 'none' })));
    await child.ended();
  });

  it('that fails reports its exit and its error output', async () => {
    const child = startClientProcess(TASK, script(`console.error('no cart here'); process.exit(3)`));
    await expect(child.ended()).rejects.toThrow('ended with code 3: no cart here');
  });

  it('that cannot be started causes an error', async () => {
    const child = startClientProcess(TASK, { clientCommand: ['/nowhere/anabranch'], signal });
    await expect(child.ended()).rejects.toThrow(/ended with an error \(spawn \/nowhere\/anabranch ENOENT\)/);
    await child.kill();
  });

  it('has exited when kill() resolves, and may be killed again', async () => {
    const child = startClientProcess(TASK, script('setInterval(() => {}, 1000)'));
    await child.kill();
    expect(() => process.kill(child.pid, 0)).toThrow(/ESRCH/);
    await child.kill();
    await expect(child.ended()).rejects.toThrow('signal SIGKILL');
  });

  it('that fails makes the demo fail, which stops the other variants at once', async () => {
    await using server = await startTestServer();
    const client = connectClient({ address: server.url });
    const events: DemoEvent[] = [];
    const failing = script(`console.error('no cart here'); process.exit(3)`);
    const demo = playAllVariants({ client, seed: 7, ...failing, onEvent: (event) => events.push(event) });
    await expect(demo).rejects.toThrow('ended with code 3: no cart here');
    expect(events.filter(({ event }) => event === 'replayed')).toEqual([]);
    client.close();
  });
});
