import { stripVTControlCharacters } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { widthOf } from '../../src/cli/columns.ts';
import { type ScriptedPeer, startPeer } from '../client/scripted-peer.ts';
import { attemptSteps, attemptTrajectory, rolloutId, sampleRollouts, sampleStages } from './rollout_samples.ts';
import { type CliOptions, runCli, withoutPageLink } from './run_cli.ts';
import { runId, sampleRuns, trajectoryId } from './run_samples.ts';

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

interface Listed {
  readonly rollouts: { readonly id: string }[];
  readonly groups: { readonly number: string }[];
  readonly stages: { readonly number: string }[];
  readonly nextPageToken: string;
}

const listed = async (...args: string[]) =>
  JSON.parse(await outputOf(['rollouts', 'lr 0.1', '--json', ...args])) as Listed;

/** The ids that --json prints, as their numbers in rollout_samples.ts. */
const found = async (...args: string[]) => (await listed(...args)).rollouts.map(({ id }) => Number(id.slice(-2)));

describe('anabranch rollouts', () => {
  it('lists stages, groups with means and rates, and rollouts with ids, in 80 columns', async () => {
    await expect(await outputOf(['rollouts', 'lr 0.1'])).toMatchFileSnapshot('golden/rollouts.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const coloured = await outputOf(['rollouts', 'lr 0.1'], { terminal: true });
    await expect(coloured).toMatchFileSnapshot('golden/rollouts.terminal.txt');
    expect(stripVTControlCharacters(coloured)).toBe(await outputOf(['rollouts', runId(2)]));
    expect(await outputOf(['rollouts', runId(2)], { terminal: true, env: { NO_COLOR: '1' } })).not.toContain('\u001b');
  });

  it('--tasks shows tasks and workers instead of ids', async () => {
    await expect(await outputOf(['rollouts', 'lr 0.1', '--tasks'])).toMatchFileSnapshot('golden/rollouts.tasks.txt');
  });

  it('filters by stage, task, worker, status, label, verdict and reward', async () => {
    expect(await found('--stage', 'train-step-3')).toEqual([5, 6, 7, 8, 9]);
    expect(await found('--stage', 'Train step 1')).toEqual([1, 2, 3, 4]);
    expect(await found('--task', 'wifi')).toEqual([5, 7, 8, 9]);
    expect(await found('--worker', 'gpu-7/1')).toEqual([6]);
    expect(await found('--status', 'running,failed')).toEqual([4, 6]);
    expect(await found('--label', 'difficulty=easy')).toEqual([3]);
    expect(await found('--success', 'yes')).toEqual([3]);
    expect(await found('--success', 'no')).toEqual([1, 2, 4]);
    expect(await found('--min-reward', '0', '--max-reward', '4')).toEqual([1, 2]);
    expect(await found('--min-reward', '-Infinity', '--max-reward', '-0.1')).toEqual([5]);
  });

  it('reads as many pages as the limit needs, and --page continues where a list ended', async () => {
    expect(await found('-n', '6')).toEqual([1, 2, 3, 4, 5, 6]);
    const { nextPageToken, groups, stages } = await listed('-n', '2');
    expect({ groups: groups.length, stages: stages.length }).toEqual({ groups: 1, stages: 1 });
    expect(await found('-n', '3', '--page', nextPageToken)).toEqual([3, 4, 5]);
    expect(await outputOf(['rollouts', 'lr 0.1', '-n', '2'])).toMatch(
      /\nShows only the first 2\. --limit N lists more; --page continues \(see --help\)\.\n$/,
    );
  });

  it('says what to do if nothing is found', async () => {
    const none = await runCli(['rollouts', 'lr 0.1', '--task', 'none', '--address', peer.url]);
    expect(none.stdout).toBe(
      'No rollout matches the filters. `npm run -s anabranch -- rollouts "lr 0.1"` lists all rollouts of the run.\n',
    );
    const empty = await runCli(['rollouts', 'lr 0.1, later', '--address', peer.url]);
    expect(empty.stdout).toBe(
      'No rollouts yet: a client creates them with CreateRollouts (`client.rollouts.createRollouts` in TypeScript).\n',
    );
    const { code, stderr } = await runCli(['rollouts', 'lr 0.1', '--stage', 'eval-9', '--address', peer.url]);
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: 'refused: STAGE_NOT_FOUND. `npm run -s anabranch -- run RUN` lists what exists.\n',
    });
  });
});

describe('anabranch rollout', () => {
  it('shows verdict, errors, validations, overrides, attempts, environments, times and turns, in 80 columns', async () => {
    await expect(await outputOf(['rollout', rolloutId(3)])).toMatchFileSnapshot('golden/rollout.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const drawn = await outputOf(['rollout', rolloutId(3)], { terminal: true });
    const coloured = withoutPageLink(drawn, `${peer.url}/rollouts/${rolloutId(3)}`);
    await expect(coloured).toMatchFileSnapshot('golden/rollout.terminal.txt');
    expect(stripVTControlCharacters(coloured)).toBe(await outputOf(['rollout', rolloutId(3)]));
  });

  it('omits empty sections', async () => {
    await expect(await outputOf(['rollout', rolloutId(8)])).toMatchFileSnapshot('golden/rollout.bare.txt');
  });

  it('shows own turns only, as many as requested', async () => {
    const turns = async (...args: string[]) =>
      (await outputOf(['rollout', rolloutId(3), ...args])).match(/^ +\d+ +[+–0]/gmu) ?? [];
    expect(await turns()).toHaveLength(10);
    expect(await turns('--turns', '3')).toHaveLength(3);
    expect(await turns('--turns', '0')).toHaveLength(0);
    expect((await turns('--turns', '10000')).map((line) => Number.parseInt(line, 10))).toEqual(
      Array.from({ length: 15 }, (_, i) => 201 + i),
    );
  });

  it('--json prints all of it', async () => {
    expect(JSON.parse(await outputOf(['rollout', rolloutId(3), '--json', '-n', '2']))).toMatchObject({
      rollout: { id: rolloutId(3), result: { agentReportedSuccess: false }, success: true },
      task: { id: 'settings/dark-mode' },
      attempts: [
        { number: 1, trajectoryId: '' },
        { number: 2, trajectoryId: trajectoryId(23) },
      ],
      validations: [{ name: 'screenshot', advisory: true }, { actualResult: 'ui_mode=day' }],
      overrides: [
        { ordinal: '1', success: true },
        { ordinal: '0', actor: 'ben' },
      ],
      environments: [{ externalId: 'pixel-7' }],
      steps: [{ stepNumber: '214' }, { stepNumber: '215', reward: 14 }],
    });
  });

  it('--attempt shows the turns of another attempt, and lists the attempts', async () => {
    expect(await outputOf(['rollout', rolloutId(3), '--attempt', '2'])).toBe(await outputOf(['rollout', rolloutId(3)]));
    expect(await outputOf(['rollout', rolloutId(3), '--attempt', '1'])).not.toContain('turns of attempt');
    const { code, stderr } = await runCli(['rollout', rolloutId(3), '--attempt', '7', '--address', peer.url]);
    expect({ code, stderr }).toEqual({ code: 1, stderr: `Rollout ${rolloutId(3)} has no attempt 7: it has 1, 2.\n` });
  });

  it('an unknown rollout causes an error that says how to find one', async () => {
    const { code, stderr } = await runCli(['rollout', rolloutId(77), '--address', peer.url]);
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: 'refused: ROLLOUT_NOT_FOUND. `npm run -s anabranch -- rollouts RUN` lists what exists.\n',
    });
  });
});
