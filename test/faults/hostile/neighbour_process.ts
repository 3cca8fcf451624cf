import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as wait } from 'node:timers/promises';
import { exitOf } from '../../support/janitor.ts';
import { programFile } from '../../support/program.ts';
import type { Done, NeighbourSettings } from './act_runner.ts';

/** A neighbour whose process is capped (`act_runner.ts`). */
export interface NeighbourProcess {
  /** Kills the process, so that its connections break. Returns what it has done a second. */
  kill(): Promise<Readonly<Record<string, number>>>;
}

/** Resolves when the neighbour has done each of its acts. */
export async function startNeighbourProcess(settings: NeighbourSettings): Promise<NeighbourProcess> {
  const child = fork(programFile('test/faults/hostile/neighbour-child.ts'), [JSON.stringify(settings)]);
  const begun = performance.now();
  const ask = async (): Promise<Done> => {
    const answer = once(child, 'message') as Promise<[Done]>;
    child.send('done?');
    return (await answer)[0];
  };
  while (Object.values(await ask()).some((count) => count === 0)) await wait(50);
  return {
    kill: async () => {
      const done = await ask();
      const seconds = (performance.now() - begun) / 1000;
      child.kill('SIGKILL');
      await exitOf(child);
      return Object.fromEntries(Object.entries(done).map(([name, count]) => [name, Math.round(count / seconds)]));
    },
  };
}
