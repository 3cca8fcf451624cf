import { alternate, type Bench, compare, figure, type Run } from '../bench.ts';
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
    const append = async () => {
      const { p50Ms, p99Ms } = await waitForAcks(run, real);
      p99s.push(p99Ms[0]!);
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
      real: append,
      'null store': async () => (await waitForAcks(run, over)).p50Ms[0]!,
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

/** Measures appends that wait for their acks, one after the other. */
export async function waitForAcks({ warmupSeconds, seconds }: Run, server: BenchServer): Promise<AppendFigures> {
  const { address, ca, token } = server;
  const settings: AppendSettings = {
    address,
    ca,
    token,
    trajectories: await server.trajectories(1),
    connections: 1,
    window: 1,
    stepsPerFrame: 1,
    payload: 'step',
    warmupSeconds,
    seconds,
  };
  return runProgram<AppendFigures>('append', settings);
}
