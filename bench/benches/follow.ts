import { alternate, type Bench, figure, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { FollowFigures, FollowSettings } from '../programs/follow.ts';
import type { BenchServer } from '../resources.ts';

/** Measures the delivery to 100 followers of a new trajectory. */
export async function delivery(
  { warmupSeconds, seconds }: Run,
  writer: BenchServer,
  reader: BenchServer,
): Promise<FollowFigures> {
  const [trajectoryId] = await writer.trajectories(1);
  const settings: FollowSettings = {
    writerAddress: writer.address,
    followerAddress: reader.address,
    token: writer.token,
    trajectoryId: trajectoryId!,
    followers: 100,
    connections: 4,
    everyMs: 50,
    warmupSeconds,
    seconds,
  };
  return runProgram<FollowFigures>('follow', settings);
}

/** Measures deliveries in all rounds. */
async function deliveries(run: Run, writer: BenchServer, reader: BenchServer) {
  const p99s: number[] = [];
  const samples = await alternate(run, {
    '100 followers': async () => {
      const { p50Ms, p99Ms } = await delivery(run, writer, reader);
      p99s.push(p99Ms);
      return p50Ms;
    },
  });
  return { p50s: samples['100 followers'], p99s };
}

export const follow: Bench = {
  names: ['follow', 'follow-p99'],
  about:
    'ms from commit to delivery, p50 over 100 followers of one trajectory, 20 steps a second, on the server that commits',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const { p50s, p99s } = await deliveries(run, server, server);
    return [
      figure(run, { bench: 'follow', aim: '<= 5', unit: 'ms' }, p50s),
      figure(run, { bench: 'follow-p99', unit: 'ms' }, p99s),
    ];
  },
};

export const followRemote: Bench = {
  names: ['follow-remote', 'follow-remote-p99'],
  about: 'the same on another server of the same database',
  engines: ['postgres'],
  async run(run) {
    const writer = await run.resources.server('real', run.engine);
    const reader = await run.resources.server('real', run.engine, writer.database);
    const { p50s, p99s } = await deliveries(run, writer, reader);
    return [
      figure(run, { bench: 'follow-remote', aim: '<= 50', unit: 'ms' }, p50s),
      figure(run, { bench: 'follow-remote-p99', unit: 'ms' }, p99s),
    ];
  },
};
