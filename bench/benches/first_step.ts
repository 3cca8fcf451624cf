import { alternate, type Bench, compare } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { FirstStepFigures, FirstStepSettings } from '../programs/first_step.ts';

export const firstStep: Bench = {
  names: ['first-step'],
  about: 'p50 from nothing to the first durable step of a trajectory that open creates; against CreateTrajectory first',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { warmupSeconds, seconds } = run;
    const { address } = await run.resources.server('real', run.engine);
    const measure = async (inOpen: boolean) => {
      const settings: FirstStepSettings = { address, inOpen, warmupSeconds, seconds };
      return (await runProgram<FirstStepFigures>('first_step', settings)).p50Ms;
    };
    const samples = await alternate(run, {
      'created by open': () => measure(true),
      'created before': () => measure(false),
    });
    return [
      compare(
        run,
        { bench: 'first-step', aim: '<= 0.7', unit: 'ms' },
        samples['created by open'],
        samples['created before'],
      ),
    ];
  },
};
