import { alternate, type Bench, compare, figure } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { AppendFigures, AppendSettings } from '../programs/append.ts';
import type { DriverFigures, DriverSettings } from '../programs/driver.ts';
import type { BenchServer } from '../resources.ts';

export const lockstep: Bench = {
  names: ['lockstep', 'lockstep-p99'],
  about:
    'p50 of one append that waits for its ack; against p50 over the null store + p50 of one autocommit INSERT by the driver',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { warmupSeconds, seconds } = run;
    const real = await run.resources.server('real', run.engine);
    const over = await run.resources.server('null', run.engine);
    const database = await run.resources.emptySchema(run.engine);
    const p99s: number[] = [];
    const append = async (server: BenchServer, slow?: number[]) => {
      const [trajectory] = await server.trajectories(1);
      const settings: AppendSettings = {
        address: server.address,
        trajectories: [trajectory!],
        connections: 1,
        window: 1,
        stepsPerFrame: 1,
        payload: 'step',
        warmupSeconds,
        seconds,
      };
      const { p50Ms, p99Ms } = await runProgram<AppendFigures>('append', settings);
      slow?.push(p99Ms[0]!);
      return p50Ms[0]!;
    };
    const insert = async (round: number) => {
      const firstTree = 1 + round;
      const settings: DriverSettings = {
        task: 'insert-one',
        database,
        payload: 'step',
        firstTree: firstTree * 10,
        warmupSeconds,
        seconds,
      };
      return (await runProgram<DriverFigures>('driver', settings)).p50Ms;
    };
    const samples = await alternate(run, {
      real: () => append(real, p99s),
      'null store': () => append(over),
      driver: insert,
    });
    const ceilings = samples.driver.map((p50, i) => p50 + samples['null store'][i]!);
    const aim = run.engine === 'sqlite' ? '<= 1.3' : '<= 1.6';
    return [
      compare(run, { bench: 'lockstep', aim, unit: 'ms' }, samples.real, ceilings),
      figure(run, { bench: 'lockstep-p99', unit: 'ms' }, p99s),
    ];
  },
};
