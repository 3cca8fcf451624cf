import { alternate, type Bench, compare, median, type Run } from '../bench.ts';
import type { Payload } from '../payload.ts';
import { runProgram } from '../processes.ts';
import type { AppendFigures, AppendSettings } from '../programs/append.ts';
import type { DriverFigures, DriverSettings } from '../programs/driver.ts';
import type { ReadFigures, ReadSettings } from '../programs/read.ts';
import type { BenchServer } from '../resources.ts';

const STEPS = 100_000;
/** Beyond the row keys that the service assigns in this bench. */
const FAR_KEY = 1_000_000_000;

/** Creates a trajectory with at least this many steps, each with its state. */
export async function longTrajectory(run: Run, server: BenchServer, steps: number): Promise<string> {
  const { trajectories } = await longTrajectories(run, server, { count: 1, steps });
  return trajectories[0]!;
}

export interface Filled {
  readonly count: number;
  /** Of each. */
  readonly steps: number;
  /** Default: `step-with-state`. */
  readonly payload?: Payload;
  readonly experimentId?: string;
}

/** Creates trajectories with at least this many steps, side by side. Returns their ids, and the steps per second. */
export async function longTrajectories(
  run: Run,
  server: BenchServer,
  { count, steps, payload = 'step-with-state', experimentId = '' }: Filled,
): Promise<{ readonly trajectories: readonly string[]; readonly stepsPerSecond: number }> {
  const trajectories = await server.trajectories(count, experimentId);
  run.showProgress(`writing ${count * steps} steps`);
  const begun = performance.now();
  await runProgram<AppendFigures>('append', {
    address: server.address,
    trajectories,
    connections: count,
    window: 1024,
    stepsPerFrame: 100,
    payload,
    warmupSeconds: 0,
    seconds: 0,
    steps,
  } satisfies AppendSettings);
  return { trajectories, stepsPerSecond: (count * steps * 1000) / (performance.now() - begun) };
}

export const read: Bench = {
  names: ['read', 'read-driver'],
  about:
    'steps/s of ReadSteps, FULL view, 100,000 steps, one reader; against the same bytes from memory, and the driver’s own SELECT',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { warmupSeconds, seconds } = run;
    const writing = await run.resources.server('real', run.engine);
    const trajectory = await longTrajectory(run, writing, STEPS);
    const { database } = writing;
    await writing.stop();
    let bytesPerStep = 0;
    const cpuMicros: Record<'real' | 'memory', number[]> = { real: [], memory: [] };
    // Two servers cannot share a SQLite file, so each measurement starts its own server.
    const measure = async (kind: 'real' | 'memory') => {
      const server = await run.resources.server(kind, run.engine, database);
      const settings: ReadSettings = { address: server.address, trajectories: [trajectory], warmupSeconds, seconds };
      const cpu = server.cpuSeconds();
      const figures = await runProgram<ReadFigures>('read', settings);
      cpuMicros[kind].push(((server.cpuSeconds() - cpu) / figures.allSteps) * 1e6);
      bytesPerStep = figures.bytesPerStep;
      await server.stop();
      return figures.stepsPerSecond;
    };
    const select = async () => {
      const settings: DriverSettings = {
        task: 'select',
        database,
        payload: 'step-with-state',
        firstTree: FAR_KEY,
        warmupSeconds,
        seconds,
        steps: STEPS,
      };
      return (await runProgram<DriverFigures>('driver', settings)).perSecond;
    };
    const samples = await alternate(run, {
      real: () => measure('real'),
      memory: () => measure('memory'),
      driver: select,
    });
    const cpuOf = (kind: keyof typeof cpuMicros) => `${median(cpuMicros[kind]).toFixed(2)} µs`;
    const note = `${bytesPerStep.toFixed(0)} B a step; CPU a step: server ${cpuOf('real')}, from memory ${cpuOf('memory')}`;
    return [
      compare(run, { bench: 'read', aim: '>= 0.5', unit: 'steps/s', note }, samples.real, samples.memory),
      compare(run, { bench: 'read-driver', aim: '>= 1', unit: 'steps/s' }, samples.real, samples.driver),
    ];
  },
};
