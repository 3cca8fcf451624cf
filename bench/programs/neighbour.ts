import { type Done, type NeighbourSettings, runActs } from '../../test/faults/hostile/act_runner.ts';
import { pause, program } from './program.ts';

/** A neighbour on the same server, whose CPU is capped. Its figures are how often it did each act a second. */
export interface NeighbourRun extends NeighbourSettings {
  readonly seconds: number;
}

await program(async ({ seconds, ...settings }: NeighbourRun): Promise<Done> => {
  const done = runActs(settings);
  await pause(seconds);
  return Object.fromEntries(Object.entries(done).map(([name, count]) => [name, count / seconds]));
});
