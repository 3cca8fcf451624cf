/** A neighbour in a process of its own, which tells what it has done; started by `neighbour_process.ts`. */
import process from 'node:process';
import { type NeighbourSettings, runActs } from './act_runner.ts';

const done = runActs(JSON.parse(process.argv[2] ?? '{}') as NeighbourSettings);
process.on('message', () => process.send?.(done));
process.on('disconnect', () => process.exit());
