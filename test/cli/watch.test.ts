import { stripVTControlCharacters } from 'node:util';
import { clone, fromJsonString } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { type Run, RunSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunChangesSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { refusal, startPeer, type WatchAnswer, type WatchScript } from '../client/scripted-peer.ts';
import { GROUPS, ROLLOUTS } from './rollout_samples.ts';
import { type CliOptions, type CliResult, runCli } from './run_cli.ts';
import { PROGRESS, RUNS, runId, STAGES, sampleRuns } from './run_samples.ts';

const RUN = runId(2);
const { RUNNING, COMPLETED, FAILED } = Status;
const runWith = (more: Partial<Run> = {}) => Object.assign(clone(RunSchema, RUNS[1]!), more);
const progress = PROGRESS[RUN];
const train = STAGES[3];
const caughtUp = { caughtUp: true };

const saying = (answers: WatchAnswer[], error?: ConnectError): WatchScript =>
  async function* () {
    yield* answers;
    if (error !== undefined) throw error;
  };

/** From the middle of a training step to the end of the run. */
const STORY: WatchAnswer[] = [
  { run: runWith(), stages: train ? [train] : [] },
  { progress: { ...progress }, ...caughtUp },
  {
    stages: [{ ...train, completedSubsteps: 4n, status: COMPLETED, metrics: { loss: 0.3 }, revision: 6n }],
    ...caughtUp,
  },
  caughtUp,
  { progress: { ...progress, percent: 30, openStages: [] }, ...caughtUp },
  { run: runWith({ phase: 'saving', stale: true, revision: 8n }), ...caughtUp },
];
const end = (status: Status): WatchAnswer => ({
  run: runWith({ status, statusMessage: 'that was it', phase: '', revision: 9n }),
  progress: { ...progress, percent: 100, openStages: [], estimatedRemaining: undefined },
  ...caughtUp,
});

interface Watched extends CliResult {
  readonly watches: number;
}

async function watched(
  watch: WatchScript[],
  args: readonly string[] = [],
  options: CliOptions = {},
  name = RUN,
): Promise<Watched> {
  await using peer = await startPeer({ runs: sampleRuns(), watch });
  const result = await runCli(['watch', name, ...args, '--address', peer.url], options);
  return { ...result, watches: peer.watches.length };
}

/** The sequence that starts a new picture; between two of them there is one picture. */
const CLEAR = '\u001b[0J';
const framesOf = (screen: string) =>
  screen
    .split(CLEAR)
    .map((frame, i, all) => (i < all.length - 1 ? frame.slice(0, frame.lastIndexOf('\u001b')) : frame));

const story = [saying([...STORY, end(COMPLETED)])];

describe('anabranch watch', () => {
  it('without a terminal prints one line for each change, and exits when the run has ended', async () => {
    const { code, stdout, stderr } = await watched(story);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await expect(stdout).toMatchFileSnapshot('golden/watch.txt');
  });

  it('on a terminal redraws one picture, which stays when the run has ended', async () => {
    const { code, stdout, stderr } = await watched(story, [], { terminal: true });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await expect(stdout).toMatchFileSnapshot('golden/watch.terminal.txt');
    const frames = framesOf(stdout).map(stripVTControlCharacters);
    expect(frames.length).toBeGreaterThan(3);
    for (const line of frames.join('').split('\n')) expect(widthOf(line)).toBeLessThanOrEqual(80);
    await expect(frames[0]).toMatchFileSnapshot('golden/watch.first.txt');
    await expect(frames.at(-1)).toMatchFileSnapshot('golden/watch.last.txt');
  });

  it('moves the cursor up by exactly the lines it has drawn', async () => {
    const { stdout } = await watched(story, [], { terminal: true });
    const parts = stdout.split(CLEAR).slice(0, -1);
    const ups = parts.map((part) => Number.parseInt(part.slice(part.lastIndexOf('\u001b[') + 2), 10));
    const heights = framesOf(stdout).map((frame) => frame.split('\n').length - 1);
    expect(ups).toEqual(heights.slice(0, -1));
  });

  describe('--rollouts', () => {
    const group = GROUPS[1]!;
    const open = ROLLOUTS.filter(({ groupId }) => groupId === group.id);
    const [live] = open.filter(({ status }) => status === RUNNING);
    const ended = {
      ...group,
      status: COMPLETED,
      revision: 4n,
      statistics: { ...group.statistics!, successRate: 0.25 },
    };
    const story = [
      saying([
        { run: runWith(), stages: train ? [train] : [], groups: [group], rollouts: open },
        { progress: { ...progress }, ...caughtUp },
        { rollouts: live ? [{ ...live, turns: 9n }] : [], ...caughtUp },
        {
          groups: [ended],
          rollouts: live ? [{ ...live, status: COMPLETED, turns: 9n, reward: 2, success: true, revision: 4n }] : [],
          ...caughtUp,
        },
        end(COMPLETED),
      ]),
    ];

    it('without a terminal prints a line for each rollout whose status has changed, and for each group that has ended', async () => {
      const { code, stdout, stderr } = await watched(story, ['--rollouts']);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      await expect(stdout).toMatchFileSnapshot('golden/watch.rollouts.txt');
    });

    it('on a terminal draws a mark for each rollout, below its group', async () => {
      const { code, stdout } = await watched(story, ['--rollouts'], { terminal: true });
      expect(code).toBe(0);
      const frames = framesOf(stdout).map(stripVTControlCharacters);
      await expect(frames[0]).toMatchFileSnapshot('golden/watch.rollouts.first.txt');
      expect(frames.at(-1)).toContain('●✓▸·-');
      for (const line of frames.join('').split('\n')) expect(widthOf(line)).toBeLessThanOrEqual(80);
    });

    it('--json prints groups and rollouts that changed', async () => {
      const { stdout } = await watched(story, ['--rollouts', '--json']);
      const changes = stdout.trimEnd().split('\n');
      expect(
        changes.map((line) => {
          const { groups, rollouts } = fromJsonString(RunChangesSchema, line);
          return [groups.length, rollouts.length];
        }),
      ).toEqual([
        [1, 5],
        [0, 1],
        [1, 1],
        [0, 0],
      ]);
    });

    it('shows at most six groups, live ones first, and the number of others', async () => {
      const groups = Array.from({ length: 11 }, (_, i) => ({
        ...ended,
        id: `g${i}`,
        number: BigInt(i),
        status: i === 10 ? RUNNING : COMPLETED,
      }));
      const many = { run: runWith(), stages: train ? [train] : [], groups, progress: { ...progress }, ...caughtUp };
      const { stdout } = await watched([saying([many, end(COMPLETED)])], ['--rollouts'], { terminal: true });
      const lines = stripVTControlCharacters(stdout.slice(0, stdout.indexOf(CLEAR))).split('\n');
      const shown = lines.filter((line) => line.includes(', group '));
      expect(shown).toHaveLength(6);
      expect(shown[0]).toContain('group 10');
      expect(lines).toContain('  … 5 more groups');
    });
  });

  it('on a dumb terminal prints lines, without colours', async () => {
    const { stdout } = await watched(story, [], { terminal: true, env: { TERM: 'dumb' } });
    expect(stdout).toBe((await watched(story)).stdout);
  });

  it('--json prints each change of the run, one per line', async () => {
    const { stdout } = await watched(story, ['--json']);
    const changes = stdout
      .trimEnd()
      .split('\n')
      .map((line) => fromJsonString(RunChangesSchema, line));
    expect(changes.map((each) => [each.run?.revision, each.stages.length, each.progress?.percent])).toEqual([
      [7n, 1, 26.5],
      [undefined, 1, undefined],
      [undefined, 0, 30],
      [8n, 0, undefined],
      [9n, 0, 100],
    ]);
  });

  it.each([
    [COMPLETED, 0, ''],
    [FAILED, 1, 'lr 0.1: failed.\n'],
    [Status.CANCELLED, 1, 'lr 0.1: cancelled.\n'],
  ])('--exit-status reports the end of the run: %s is exit code %s', async (status, code, stderr) => {
    const ended = [saying([...STORY, end(status)])];
    expect(await watched(ended, ['--exit-status'])).toMatchObject({ code, stderr });
    expect(await watched(ended)).toMatchObject({ code: 0, stderr: '' });
  });

  it('shows a run that has ended already, and exits', async () => {
    const { code, stdout } = await watched([saying([end(COMPLETED)])]);
    expect(code).toBe(0);
    expect(stdout.split('\n').at(-2)).toBe('lr 0.1: completed, that was it, best=349');
  });

  it('reconnects after a cut, reports it once, and repeats nothing', async () => {
    const away = saying([], refusal(Code.Unavailable, 'DATABASE_UNAVAILABLE', {}, 1));
    const cut = saying(STORY, new ConnectError('gone', Code.Unavailable));
    const back = saying([...STORY.slice(-2), end(COMPLETED)]);
    const { code, stdout, stderr, watches } = await watched([cut, away, away, back]);
    expect({ code, watches }).toEqual({ code: 0, watches: 4 });
    expect(stdout).toBe((await watched(story)).stdout);
    expect(stderr).toBe('The connection was lost; reconnecting. ([unavailable] gone)\n');
  });

  it('shows a cut below the picture, until the next picture', async () => {
    const cut = saying(STORY, new ConnectError('gone', Code.Unavailable));
    const { stdout, stderr } = await watched([cut, ...story], [], { terminal: true });
    expect(stderr).toBe('');
    expect(stdout).toContain('The connection was lost; reconnecting.');
    expect(stdout.slice(stdout.lastIndexOf(CLEAR))).not.toContain('The connection was lost; reconnecting.');
  });

  it('exits without an error on Ctrl-C', async () => {
    const stop = new AbortController();
    const open: WatchScript = async function* (_, context) {
      yield* STORY;
      await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    };
    const { code, stderr } = await watched([open], ['--exit-status'], {
      signal: stop.signal,
      onOutput: (soFar) => soFar.includes('saving') && stop.abort(),
    });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  });

  it('a run that is deleted meanwhile causes an error, with exit code 1', async () => {
    const deleted = saying(STORY, refusal(Code.Aborted, 'RUN_DELETED'));
    const { code, stderr } = await watched([deleted]);
    expect({ code, stderr }).toEqual({ code: 1, stderr: 'refused: RUN_DELETED (RUN_DELETED).\n' });
  });

  it('an unknown name causes an error that says how to find a run', async () => {
    const { code, stderr } = await watched([], [], {}, 'nobody');
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: 'No run has the name "nobody". `npm run -s anabranch -- runs` lists the runs.\n',
    });
  });

  it('shows at most ten open stages, and the number of others', async () => {
    const stages = Array.from({ length: 13 }, (_, i) => ({
      ...train,
      id: `s${i}`,
      number: BigInt(i),
      status: RUNNING,
    }));
    const { stdout } = await watched(
      [saying([{ run: runWith(), stages, progress: { ...progress }, ...caughtUp }, end(COMPLETED)])],
      [],
      { terminal: true },
    );
    const first = stripVTControlCharacters(stdout.slice(0, stdout.indexOf(CLEAR)));
    expect(first.match(/train step \d+ /gu)).toHaveLength(10);
    expect(first).toContain('… 3 more');
  });
});
