import { stripVTControlCharacters } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { widthOf } from '../../src/cli/columns.ts';
import { type ScriptedPeer, startPeer } from '../client/scripted-peer.ts';
import { attemptSteps, attemptTrajectory, sampleRollouts, sampleStages } from './rollout_samples.ts';
import { type CliOptions, runCli } from './run_cli.ts';
import { runId, sampleRuns } from './run_samples.ts';

let peer: ScriptedPeer;
beforeAll(async () => {
  peer = await startPeer({
    runs: { ...sampleRuns(), ...sampleStages() },
    rollouts: sampleRollouts(),
    trajectories: attemptTrajectory,
    read: Array.from({ length: 20 }, () => attemptSteps),
  });
});
afterAll(() => peer?.[Symbol.asyncDispose]());

async function outputOf(args: readonly string[], options: CliOptions = {}): Promise<string> {
  const { code, stdout, stderr } = await runCli([...args, '--address', peer.url], options);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  for (const line of stripVTControlCharacters(stdout).split('\n')) {
    if (!args.includes('--json')) expect(widthOf(line)).toBeLessThanOrEqual(80);
  }
  return stdout;
}

/** The lines of the section of groups. */
const groupsOf = (page: string) => /\n(groups\n[\s\S]*?\n)(?:\n|$)/u.exec(page)?.[1] ?? '';

describe('anabranch run', () => {
  it('lists groups by stage, with means and rates, in 80 columns', async () => {
    await expect(groupsOf(await outputOf(['run', 'lr 0.1']))).toMatchFileSnapshot('golden/run.groups.txt');
  });

  it('--rollouts adds a line for each rollout, with its id', async () => {
    const page = await outputOf(['run', 'lr 0.1', '--rollouts']);
    await expect(groupsOf(page)).toMatchFileSnapshot('golden/run.rollouts.txt');
    const coloured = await outputOf(['run', runId(2), '--rollouts'], { terminal: true });
    expect(stripVTControlCharacters(coloured)).toContain(groupsOf(page));
  });

  it('reads as many pages as the limit needs, and says if there are more', async () => {
    const listed = async (...args: string[]) => {
      const run = JSON.parse(await outputOf(['run', 'lr 0.1', '--rollouts', '--json', ...args])) as {
        readonly rollouts: { readonly id: string }[];
        readonly groups: readonly object[];
        readonly moreRollouts: boolean;
      };
      return { ...run, rollouts: run.rollouts.map(({ id }) => Number(id.slice(-2))) };
    };
    expect(await listed('-n', '6')).toMatchObject({ rollouts: [1, 2, 3, 4, 5, 6], moreRollouts: true });
    expect((await listed('-n', '2')).groups).toHaveLength(1);
    expect(await listed()).toMatchObject({ moreRollouts: false });
    expect(groupsOf(await outputOf(['run', 'lr 0.1', '--rollouts', '-n', '2']))).toMatch(
      /\n {2}… more rollouts; --limit N lists more\n$/,
    );
  });
});
