import { alternate, type Bench, compare, median } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { EnvironmentsFigures, EnvironmentsSettings } from '../programs/environments.ts';

const ENVIRONMENTS = 256;

export const appendBatch: Bench = {
  names: ['append-batch', 'append-batch-speed'],
  about:
    'client CPU a step of 256 environments that step together, by one AppendBatch; against 256 calls of AppendStep on three connections; and steps/s of both',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { warmupSeconds, seconds } = run;
    const server = await run.resources.server('real', run.engine);
    const speeds = { AppendBatch: [] as number[], AppendStep: [] as number[] };
    const serverMicros = { AppendBatch: [] as number[], AppendStep: [] as number[] };
    const measure = async (by: EnvironmentsSettings['by']) => {
      const trajectories = await server.trajectories(ENVIRONMENTS);
      const cpu = server.cpuSeconds();
      const settings: EnvironmentsSettings = { address: server.address, trajectories, by, warmupSeconds, seconds };
      const figures = await runProgram<EnvironmentsFigures>('environments', settings);
      speeds[by].push(figures.stepsPerSecond);
      serverMicros[by].push(((server.cpuSeconds() - cpu) / figures.allSteps) * 1e6);
      return figures.clientCpuMicrosPerStep;
    };
    const samples = await alternate(run, {
      AppendBatch: () => measure('AppendBatch'),
      AppendStep: () => measure('AppendStep'),
    });
    const ofServer = (by: EnvironmentsSettings['by']) => `${median(serverMicros[by]).toFixed(1)} µs`;
    const note = `CPU of the server a step: ${ofServer('AppendBatch')}, ${ofServer('AppendStep')} as AppendStep`;
    return [
      compare(run, { bench: 'append-batch', aim: '<= 0.3', unit: 'µs', note }, samples.AppendBatch, samples.AppendStep),
      compare(run, { bench: 'append-batch-speed', unit: 'steps/s' }, speeds.AppendBatch, speeds.AppendStep),
    ];
  },
};
