import { stripVTControlCharacters } from 'node:util';
import { fromJsonString } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ListRunsResponseSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { refusal, type ScriptedPeer, type Scripts, startPeer } from '../client/scripted-peer.ts';
import { type CliOptions, runCli, withoutPageLink } from './run_cli.ts';
import { runId, sampleRuns, trajectoryId } from './run_samples.ts';

const scripts = (): Scripts => ({
  runs: sampleRuns(),
  rollouts: { listGroups: () => ({}) },
  trajectories: {
    getTree() {
      throw refusal(Code.NotFound, 'TRAJECTORY_NOT_FOUND');
    },
  },
});

let peer: ScriptedPeer;
beforeAll(async () => {
  peer = await startPeer(scripts(), 'port');
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

/** The ids that --json prints. */
async function ids(...args: string[]): Promise<string[]> {
  const { runs } = fromJsonString(ListRunsResponseSchema, await outputOf(['runs', '--json', ...args]));
  return runs.map(({ run }) => run?.id ?? '');
}

describe('anabranch runs', () => {
  it('lists all pages in 80 columns, without colours if there is no terminal', async () => {
    await expect(await outputOf(['runs'])).toMatchFileSnapshot('golden/runs.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const coloured = await outputOf(['runs'], { terminal: true });
    await expect(coloured).toMatchFileSnapshot('golden/runs.terminal.txt');
    expect(stripVTControlCharacters(coloured)).toBe(await outputOf(['runs']));
    expect(await outputOf(['runs'], { terminal: true, env: { NO_COLOR: '1' } })).toBe(await outputOf(['runs']));
  });

  it('does not repeat the name of the experiment if there is only one', async () => {
    await expect(await outputOf(['runs', '-e', 'cartpole'])).toMatchFileSnapshot('golden/runs.experiment.txt');
  });

  it('filters by experiment, status, label, staleness and root', async () => {
    expect(await ids('-e', 'default')).toEqual([runId(5), runId(6)]);
    expect(await ids('--status', 'running,PENDING')).toEqual([runId(2), runId(4)]);
    expect(await ids('--status', 'running', '--status', 'pending')).toEqual([runId(2), runId(4)]);
    expect(await ids('--label', 'model=reflex', '--label', 'sweep_id=a')).toEqual([runId(2)]);
    expect(await ids('--label', 'model=')).toEqual([]);
    expect(await ids('--stale')).toEqual([runId(5)]);
    expect(await ids('--roots')).toEqual([runId(1), runId(5), runId(6)]);
  });

  it('reads as many pages as the limit needs, and says when there is more', async () => {
    expect(await ids('--limit', '5')).toHaveLength(5);
    const some = await outputOf(['runs', '-n', '2']);
    expect(some).toContain('\nlr 0.1 ');
    expect(some).not.toContain('later');
    expect(some).toContain('\nShows only the newest 2. --limit N lists more; --page continues (see --help).\n');
  });

  it('--page continues where a list ended', async () => {
    const first = fromJsonString(ListRunsResponseSchema, await outputOf(['runs', '--json', '-n', '3']));
    expect(await ids('-n', '3', '--page', first.nextPageToken)).toEqual([runId(4), runId(5), runId(6)]);
  });

  it('says what to do if nothing is found', async () => {
    expect(await outputOf(['runs', '-e', 'nothing'])).toBe(
      'No run matches the filters. `npm run -s anabranch -- runs` lists all runs.\n',
    );
    await using empty = await startPeer({ runs: { listRuns: () => ({}) } });
    const { stdout } = await runCli(['runs', '--address', empty.url]);
    expect(stdout).toBe('No runs yet: a client creates one with CreateRun (`client.runs.createRun` in TypeScript).\n');
  });
});

describe('anabranch run', () => {
  it('shows one run in 80 columns: head, config, stages, metrics, branches', async () => {
    await expect(await outputOf(['run', runId(2)])).toMatchFileSnapshot('golden/run.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const drawn = await outputOf(['run', 'lr 0.1'], { terminal: true });
    const coloured = withoutPageLink(drawn, `${peer.url}/runs/${runId(2)}`);
    expect(stripVTControlCharacters(coloured)).toBe(await outputOf(['run', runId(2)]));
  });

  it('omits empty sections', async () => {
    await expect(await outputOf(['run', runId(5)])).toMatchFileSnapshot('golden/run.bare.txt');
  });

  it('shows the newest stages, as many as requested, and only the requested metrics', async () => {
    const shown = await outputOf(['run', 'lr 0.1', '--stages', '2', '--metric', 'loss']);
    expect(shown).toContain('… 2 before; --stages N (up to 1000) shows more\n  train step 2');
    expect(shown).toContain('train steps: loss');
    expect(shown).not.toContain('angle  ');
    expect(shown).not.toContain('train steps: kl');
    expect(await outputOf(['run', 'lr 0.1', '--stages', '0'])).not.toContain('train step 3 ');
  });

  it('--json prints all of it', async () => {
    const json = JSON.parse(await outputOf(['run', 'lr 0.1', '--json'])) as { stages: { number: string }[] };
    expect(json).toMatchObject({
      run: { id: runId(2), number: '2', configOverridesJson: '{"learning_rate":0.1}' },
      progress: { percent: 26.5, turnsDone: '80' },
      metrics: [{ key: 'angle', pointCount: '600' }, { key: 'gain', values: [1, 4], nanCount: '1' }, { key: 'reward' }],
      tree: [{ name: 'main' }, { name: 'lr 0.1' }, {}, {}],
    });
    expect(json.stages.map(({ number }) => number)).toEqual(['0', '1', '2', '3']);
  });

  it('finds a name in its experiment, and asks for the experiment if several have it', async () => {
    expect(await outputOf(['run', 'main', '-e', 'cartpole'])).toContain(runId(1));
    expect(await outputOf(['run', 'main', '-e', 'default'])).toContain(runId(6));
    const { code, stderr } = await runCli(['run', 'main', '--address', peer.url]);
    expect(code).toBe(1);
    expect(stderr).toBe(
      'Several runs have the name "main", in experiments "cartpole", "default": add --experiment NAME, or use the run\'s id.\n',
    );
    const nobody = await runCli(['run', 'nobody', '-e', 'cartpole', '--address', peer.url]);
    expect(nobody).toEqual({
      code: 1,
      stdout: '',
      stderr: 'No run has the name "nobody" in experiment "cartpole". `npm run -s anabranch -- runs` lists the runs.\n',
    });
  });
});

describe('anabranch tree of runs', () => {
  it('draws the tree that a run belongs to, by name or by id', async () => {
    const drawn = await outputOf(['tree', runId(4)]);
    await expect(drawn).toMatchFileSnapshot('golden/tree.runs.txt');
    expect(await outputOf(['tree', 'lr 0.1, later'])).toBe(drawn);
    await expect(await outputOf(['tree', runId(4), '--bars'])).toMatchFileSnapshot('golden/tree.runs.bars.txt');
  });

  it('prints the link to the page on a terminal', async () => {
    const drawn = await outputOf(['tree', runId(4)], { terminal: true, env: { NO_COLOR: '1' } });
    expect(withoutPageLink(drawn, `${peer.url}/trees/${trajectoryId(4)}`)).toBe(await outputOf(['tree', runId(4)]));
  });

  it('prints no link for a Unix socket, which no browser opens', async () => {
    await using socket = await startPeer(scripts());
    const { stdout } = await runCli(['tree', runId(4), '--address', socket.url], { terminal: true });
    expect(stripVTControlCharacters(stdout)).toBe(await outputOf(['tree', runId(4)]));
  });

  it('--json prints the answer of GetRunTree', async () => {
    const { runs } = JSON.parse(await outputOf(['tree', 'lr 0.1', '--json'])) as { runs: { name: string }[] };
    expect(runs).toHaveLength(4);
  });
});
