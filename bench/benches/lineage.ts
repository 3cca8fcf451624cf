import { alternate, type Bench, compare, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { AppendFigures, AppendSettings } from '../programs/append.ts';
import type { ReadFigures, ReadSettings } from '../programs/read.ts';
import type { BenchServer } from '../resources.ts';

const DEPTH = 200;
const STEPS_EACH = 10;
const LEAVES = 8;

/**
 * Creates a trajectory, a branch at its end, a branch of that one, and so on, each with `stepsEach` own steps. Returns
 * their ids by depth.
 */
export async function nested(run: Run, server: BenchServer, depth: number, stepsEach: number): Promise<string[]> {
  const [root] = await server.trajectories(1);
  await server.append(root!, 0, stepsEach);
  const chain = [root!];
  for (let i = 1; i <= depth; i += 1) {
    if (i % 50 === 0) run.showProgress(`nesting branches: ${i}`);
    chain.push(await longerBranch(server, chain.at(-1)!, i * stepsEach, stepsEach));
  }
  return chain;
}

/** Creates a branch at the end of a trajectory, with own steps. */
async function longerBranch(server: BenchServer, parent: string, end: number, steps: number): Promise<string> {
  const id = await server.branch(parent, end - 1);
  await server.append(id, end, steps);
  return id;
}

export const lineage: Bench = {
  names: ['lineage'],
  about: 'ms to read 2,000 steps through 200 nested branches, each for the first time; against one trajectory',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const chain = await nested(run, server, DEPTH - 2, STEPS_EACH);
    const [flat] = await server.trajectories(1);
    await server.append(flat!, 0, DEPTH * STEPS_EACH);
    // A server caches lineages by trajectory; a leaf that was never read is not cached.
    const end = (DEPTH - 1) * STEPS_EACH;
    const leaves: string[] = [];
    for (let i = 0; i < (run.rounds + 1) * LEAVES; i += 1) {
      leaves.push(await longerBranch(server, chain.at(-1)!, end, STEPS_EACH));
    }
    const readAll = async (trajectories: readonly string[]) => {
      const settings: ReadSettings = { address: server.address, trajectories, warmupSeconds: 0, seconds: 0 };
      return (await runProgram<ReadFigures>('read', settings)).p50Ms;
    };
    await readAll(leaves.slice(run.rounds * LEAVES));
    await readAll(Array(LEAVES).fill(flat));
    const samples = await alternate(run, {
      'nested branches': (round) => readAll(leaves.slice(round * LEAVES, (round + 1) * LEAVES)),
      'one trajectory': () => readAll(Array(LEAVES).fill(flat)),
    });
    return [
      compare(
        run,
        { bench: 'lineage', aim: '<= 2', unit: 'ms' },
        samples['nested branches'],
        samples['one trajectory'],
      ),
    ];
  },
};

export const lineageAppend: Bench = {
  names: ['lineage-append'],
  about:
    'p50 of one append that waits for its ack, to a branch nested 200 deep; against one to a trajectory without a parent',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const chain = await nested(run, server, DEPTH - 1, 1);
    const { warmupSeconds, seconds } = run;
    const deep: number[] = [];
    const flat: number[] = [];
    await alternate(run, {
      'appends in turn': async () => {
        const settings: AppendSettings = {
          address: server.address,
          trajectories: [await server.branch(chain.at(-1)!, DEPTH - 1), ...(await server.trajectories(1))],
          connections: 1,
          window: 1,
          stepsPerFrame: 1,
          payload: 'step',
          oneAtATime: true,
          warmupSeconds,
          seconds,
        };
        const { p50Ms } = await runProgram<AppendFigures>('append', settings);
        deep.push(p50Ms[0]!);
        flat.push(p50Ms[1]!);
        return p50Ms[0]!;
      },
    });
    return [compare(run, { bench: 'lineage-append', aim: '<= 1.1', unit: 'ms' }, deep, flat)];
  },
};
