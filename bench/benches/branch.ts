import { alternate, type Bench, compare, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { BranchFigures, BranchSettings } from '../programs/branch.ts';
import type { BenchServer } from '../resources.ts';
import { ingest, type Load } from './ingest.ts';
import { nested } from './lineage.ts';
import { longTrajectory } from './read.ts';

/** Alternates both targets within one process, so that both medians of a round saw the same machine. */
async function branchBoth(
  run: Run,
  bench: { readonly names: readonly [near: string, far: string]; readonly aim: string; readonly bench: string },
  server: BenchServer,
  targets: BranchSettings['targets'],
) {
  const { warmupSeconds, seconds } = run;
  const near: number[] = [];
  const far: number[] = [];
  await alternate(run, {
    [`branches at ${bench.names.join(' and ')}`]: async () => {
      const settings: BranchSettings = { address: server.address, targets, warmupSeconds, seconds };
      const { p50Ms } = await runProgram<BranchFigures>('branch', settings);
      near.push(p50Ms[0]!);
      far.push(p50Ms[1]!);
      return p50Ms[1]!;
    },
  });
  return compare(run, { bench: bench.bench, aim: bench.aim, unit: 'ms' }, far, near);
}

export const branch: Bench = {
  names: ['branch'],
  about: 'p50 of BranchTrajectory at step 100,000; against step 10 of the same trajectory',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const trajectoryId = await longTrajectory(run, server, 100_001);
    return [
      await branchBoth(run, { bench: 'branch', names: ['step 10', 'step 100,000'], aim: '<= 1.5' }, server, [
        { trajectoryId, stepNumber: 10 },
        { trajectoryId, stepNumber: 100_000 },
      ]),
    ];
  },
};

export const branchNesting: Bench = {
  names: ['branch-nesting'],
  about: 'p50 of BranchTrajectory of a branch nested 500 deep; against one nested once',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const chain = await nested(run, server, 500, 1);
    return [
      await branchBoth(run, { bench: 'branch-nesting', names: ['nesting 1', 'nesting 500'], aim: '<= 2' }, server, [
        { trajectoryId: chain[1]!, stepNumber: 1 },
        { trajectoryId: chain[500]!, stepNumber: 500 },
      ]),
    ];
  },
};

const WRITER: Load = { streams: 1, connections: 1, window: 256, stepsPerFrame: 1, payload: 'step-with-state' };

export const branchWhileWriting: Bench = {
  names: ['branch-while-writing'],
  about: 'steps/s of a writer whose trajectory is branched 50 times a second; against the same writer alone',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { warmupSeconds, seconds } = run;
    const server = await run.resources.server('real', run.engine);
    let branches = 0;
    const samples = await alternate(run, {
      'with branches': () =>
        ingest(run, server, WRITER, {
          async meanwhile([trajectoryId]) {
            const settings: BranchSettings = {
              address: server.address,
              targets: [{ trajectoryId: trajectoryId!, stepNumber: 10 }],
              warmupSeconds: 0,
              seconds: warmupSeconds + seconds,
              perSecond: 50,
            };
            await server.untilLong(trajectoryId!, 11);
            branches += (await runProgram<BranchFigures>('branch', settings)).branches;
          },
        }),
      alone: () => ingest(run, server, WRITER),
    });
    const note = `${(branches / run.rounds / (warmupSeconds + seconds)).toFixed(0)} branches a second`;
    return [
      compare(
        run,
        { bench: 'branch-while-writing', aim: '>= 0.9', unit: 'steps/s', note },
        samples['with branches'],
        samples.alone,
      ),
    ];
  },
};
