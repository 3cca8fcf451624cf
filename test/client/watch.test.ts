import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  type AnabranchClient,
  type RunPicture,
  reasonOf,
  seriesId,
  type WatchOptions,
  watchRun,
} from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { refusal, type WatchAnswer, type WatchScript } from './scripted-peer.ts';

const RUN = '0191c5a0-0000-7000-8000-0000000000bb';
const { RUNNING, COMPLETED, FAILED } = Status;

const run = (revision: number, status: Status = RUNNING, phase = '') => ({
  run: { id: RUN, revision: BigInt(revision), status, phase },
});
const stage = (id: string, revision: number, status: Status = RUNNING) => ({ id, revision: BigInt(revision), status });
const percent = (value: number) => ({ progress: { percent: value } });
const caughtUp = { caughtUp: true };

const saying = (answers: WatchAnswer[], error?: ConnectError): WatchScript =>
  async function* () {
    yield* answers;
    if (error !== undefined) throw error;
  };

const cut = new ConnectError('x', Code.Unavailable);
const ended = saying([{ ...run(99, COMPLETED), ...percent(100), ...caughtUp }]);

async function pictures(client: AnabranchClient, more: Partial<WatchOptions> = {}): Promise<RunPicture[]> {
  const got: RunPicture[] = [];
  for await (const picture of watchRun(client, { runId: RUN, untilTerminal: true, ...more })) got.push(picture);
  return got;
}

/** The state in short: `3 RUNNING; a@2 RUNNING, b@1 COMPLETED; 50`. */
const short = ({ run, stages, progress }: RunPicture) =>
  [
    `${run.revision} ${Status[run.status]}`,
    [...stages.values()].map(({ id, revision, status }) => `${id}@${revision} ${Status[status]}`).join(', '),
    progress.percent,
  ].join('; ');

describe('watchRun', () => {
  it('M5: returns the whole state once the snapshot is complete, then after each change', async () => {
    const { client, peer } = await connected({
      watch: [
        saying([
          { ...run(3), stages: [stage('a', 1)] },
          { stages: [stage('b', 1)], ...percent(10), ...caughtUp },
          caughtUp,
          { stages: [stage('a', 2, COMPLETED)], ...percent(50), ...caughtUp },
          { ...run(4, COMPLETED), ...percent(100), ...caughtUp },
        ]),
      ],
    });
    const got = await pictures(client, { allStages: true });
    expect(got.map(short)).toEqual([
      '3 RUNNING; a@1 RUNNING, b@1 RUNNING; 10',
      '3 RUNNING; a@2 COMPLETED, b@1 RUNNING; 50',
      '4 COMPLETED; a@2 COMPLETED, b@1 RUNNING; 100',
    ]);
    expect(got.map(({ changed }) => [changed.run, changed.stages.map(({ id }) => id), changed.progress])).toEqual([
      [true, ['a', 'b'], true],
      [false, ['a'], true],
      [true, [], true],
    ]);
    expect(peer.watches[0]).toMatchObject({ runId: RUN, allStages: true, untilTerminal: true });
  });

  it('M5: of each row the newest revision counts, whatever arrives late or twice', async () => {
    const { client } = await connected({
      watch: [
        saying([
          { ...run(5), stages: [stage('a', 4)], ...percent(10), ...caughtUp },
          { ...run(4, RUNNING, 'older'), stages: [stage('a', 3, FAILED)], ...caughtUp },
          { ...run(5), stages: [stage('a', 4)], ...percent(10), ...caughtUp },
          { ...run(6, COMPLETED), ...percent(100), ...caughtUp },
        ]),
      ],
    });
    expect((await pictures(client)).map(short)).toEqual([
      '5 RUNNING; a@4 RUNNING; 10',
      '6 COMPLETED; a@4 RUNNING; 100',
    ]);
  });

  it('shows values that are computed at read time, although they change without a new revision', async () => {
    const stale = { run: { ...run(3).run, stale: true } };
    const { client } = await connected({
      watch: [
        saying(
          [
            { ...run(3), ...percent(1), ...caughtUp },
            { ...stale, ...caughtUp },
          ],
          cut,
        ),
        ended,
      ],
    });
    expect((await pictures(client)).map((picture) => picture.run.stale)).toEqual([false, true, false]);
  });

  it('a returned state does not change any more', async () => {
    const { client } = await connected({
      watch: [
        saying([
          { ...run(1), stages: [stage('a', 1)], ...percent(1), ...caughtUp },
          { ...run(2, COMPLETED), stages: [stage('a', 2)], ...caughtUp },
        ]),
      ],
    });
    const [first] = await pictures(client);
    expect(first?.stages.get('a')?.revision).toBe(1n);
  });

  it.each([
    ['a lost connection', cut],
    ['a draining server', refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 1)],
    ['the end of a slow reader', refusal(Code.ResourceExhausted, 'SLOW_READER', {}, 1)],
    ['an end without an error', undefined],
  ])('M5: after %s it starts with a new snapshot and continues with its previous state', async (_, error) => {
    const { client, peer } = await connected({
      watch: [
        saying([{ ...run(3), stages: [stage('a', 1)], ...percent(10), ...caughtUp }, { ...run(4) }], error),
        saying([{ ...run(4) }], error), // a snapshot that was never completed
        saying(
          [
            { ...run(4), stages: [stage('a', 1)] },
            { ...percent(10), ...caughtUp },
          ],
          error,
        ),
        ended,
      ],
      runs: { getStage: ({ stageId = '' }) => ({ stage: stage(stageId, 7, FAILED) }) },
    });
    const cuts: number[] = [];
    let complete = 0;
    const onCaughtUp = () => (complete += 1);
    const got = await pictures(client, { onCut: (_error, retryInMs) => cuts.push(retryInMs), onCaughtUp });
    expect(got.map(short)).toEqual([
      '3 RUNNING; a@1 RUNNING; 10',
      '4 RUNNING; a@1 RUNNING; 10',
      '99 COMPLETED; a@7 FAILED; 100',
    ]);
    expect(peer.watches).toHaveLength(4);
    expect(cuts).toHaveLength(3);
    expect(complete).toBe(3);
  });

  it('fetches a stage that ended while the connection was cut: the snapshot contains only open ones', async () => {
    const asked: string[] = [];
    const { client } = await connected({
      watch: [
        saying(
          [{ ...run(1), stages: [stage('a', 1), stage('b', 1), stage('c', 1, COMPLETED)], ...percent(1), ...caughtUp }],
          cut,
        ),
        saying([{ ...run(1), stages: [stage('b', 2)], ...percent(1), ...caughtUp }], cut),
        saying([{ ...run(1), stages: [stage('b', 2)], ...percent(1), ...caughtUp }], cut),
        saying([{ ...run(2, COMPLETED), stages: [stage('b', 2)], ...percent(100), ...caughtUp }]),
      ],
      runs: {
        getStage: ({ stageId = '' }) => {
          asked.push(stageId);
          if (asked.length === 1) throw new ConnectError('in the middle', Code.Unavailable);
          return { stage: stage(stageId, 3, COMPLETED) };
        },
      },
    });
    expect((await pictures(client)).map(short)).toEqual([
      '1 RUNNING; a@1 RUNNING, b@1 RUNNING, c@1 COMPLETED; 1',
      '1 RUNNING; a@3 COMPLETED, b@2 RUNNING, c@1 COMPLETED; 1',
      '2 COMPLETED; a@3 COMPLETED, b@2 RUNNING, c@1 COMPLETED; 100',
    ]);
    expect(asked).toEqual(['a', 'a']);
  });

  describe('with rollouts', () => {
    const group = (id: string, revision: number, successes: number) => ({
      groups: [{ id, stageId: 'a', revision: BigInt(revision), statistics: { successCount: BigInt(successes) } }],
    });
    const rollout = (id: string, revision: number, status: Status, turns = 0) => ({
      rollouts: [{ id, stageId: 'a', revision: BigInt(revision), status, turns: BigInt(turns) }],
    });
    const told = ({ groups, rollouts }: RunPicture) =>
      [
        [...groups.values()].map(({ id, statistics }) => `${id}: ${statistics?.successCount}`).join(', '),
        [...rollouts.values()].map(({ id, status, turns }) => `${id} ${Status[status]} ${turns}`).join(', '),
      ].join('; ');

    it('M5: returns groups and rollouts, and turns of live ones, although these change without a new revision', async () => {
      const { client, peer } = await connected({
        watch: [
          saying([
            { ...run(1), stages: [stage('a', 1)], ...group('g', 1, 0), ...rollout('r', 2, RUNNING, 1) },
            { ...percent(1), ...caughtUp },
            { ...rollout('r', 2, RUNNING, 5), ...caughtUp },
            { ...rollout('r', 1, Status.PENDING), ...group('g', 1, 0), ...caughtUp },
            { ...rollout('r', 3, COMPLETED, 8), ...group('g', 2, 1), ...caughtUp },
            { ...run(2, COMPLETED), ...percent(100), ...caughtUp },
          ]),
        ],
      });
      const got = await pictures(client, { rollouts: true });
      expect(got.map(told)).toEqual([
        'g: 0; r RUNNING 1',
        'g: 0; r RUNNING 5',
        'g: 1; r COMPLETED 8',
        'g: 1; r COMPLETED 8',
      ]);
      expect(got.map(({ changed }) => [changed.groups.length, changed.rollouts.length])).toEqual([
        [1, 1],
        [0, 1],
        [1, 1],
        [0, 0],
      ]);
      expect(peer.watches[0]?.rollouts).toBe(true);
    });

    it('fetches the stage of a rollout once, if the rollout changes after its stage has ended', async () => {
      const asked: string[] = [];
      const { client } = await connected({
        watch: [
          saying([
            { ...run(1), ...percent(1), ...caughtUp },
            { ...rollout('r', 4, COMPLETED, 9), ...caughtUp },
            { ...group('g', 3, 1), ...caughtUp },
            { ...run(2, COMPLETED), ...percent(100), ...caughtUp },
          ]),
        ],
        runs: {
          getStage: ({ stageId = '' }) => {
            asked.push(stageId);
            return { stage: stage(stageId, 7, COMPLETED) };
          },
        },
      });
      const got = await pictures(client, { rollouts: true });
      expect(got.map(({ stages }) => [...stages.keys()])).toEqual([[], ['a'], ['a'], ['a']]);
      expect(asked).toEqual(['a']);
    });

    it('fetches rollouts of a stage that ended while the connection was cut', async () => {
      const { client } = await connected({
        watch: [
          saying(
            [
              {
                ...run(1),
                stages: [stage('a', 1)],
                ...group('g', 1, 0),
                ...rollout('r', 2, RUNNING, 1),
                ...percent(1),
                ...caughtUp,
              },
            ],
            cut,
          ),
          ended,
        ],
        runs: { getStage: ({ stageId = '' }) => ({ stage: stage(stageId, 7, COMPLETED) }) },
        rollouts: {
          listRollouts: ({ pageToken }) =>
            pageToken === '' ? { ...rollout('r', 4, FAILED, 9), nextPageToken: 'more' } : rollout('s', 3, COMPLETED, 2),
          listGroups: () => group('g', 3, 1),
        },
      });
      expect((await pictures(client, { rollouts: true })).map(told)).toEqual([
        'g: 0; r RUNNING 1',
        'g: 1; r FAILED 9, s COMPLETED 2',
      ]);
    });
  });

  it('M5: reports metric series with the lowest step that changed since the last picture', async () => {
    const series = (key: string, changedFrom: number, count: number) => ({
      series: [{ key, changedFrom: BigInt(changedFrom), pointCount: BigInt(count) }],
    });
    const { client } = await connected({
      watch: [
        saying(
          [
            { ...run(1), ...percent(1), ...series('a', 0, 5), ...caughtUp },
            // Messages that are not caught up belong to the next picture.
            { ...series('a', 3, 6), caughtUp: false },
            { ...series('a', 5, 7), ...caughtUp },
            { ...series('b', 0, 1), ...caughtUp },
          ],
          cut,
        ),
        saying([
          { ...series('a', 0, 8), caughtUp: false },
          { ...run(2, COMPLETED), ...percent(100), ...caughtUp },
        ]),
      ],
    });
    const got = await pictures(client, { series: true });
    const changed = ({ changed }: RunPicture) =>
      changed.series.map(({ key, changedFrom, pointCount }) => `${key} ${changedFrom} ${pointCount}`);
    expect(got.map(changed)).toEqual([['a 0 5'], ['a 3 7'], ['b 0 1'], ['a 0 8']]);
    expect([...(got.at(-1)?.series.keys() ?? [])]).toEqual([seriesId({ stageId: '', key: 'a' }), ' b']);
  });

  it('throws for a run that is deleted, or unknown', async () => {
    const { client } = await connected({
      watch: [
        saying([{ ...run(1), ...percent(1), ...caughtUp }, { error: { code: Code.Aborted, reason: 'RUN_DELETED' } }]),
        saying([{ error: { code: Code.NotFound, reason: 'RUN_NOT_FOUND', field: 'run.run_id' } }]),
      ],
    });
    expect(await pictures(client).catch(reasonOf)).toBe('RUN_DELETED');
    expect(await pictures(client).catch(reasonOf)).toBe('RUN_NOT_FOUND');
  });

  it('throws for a snapshot without a run, instead of returning an empty state', async () => {
    const { client } = await connected({ watch: [saying([{ stages: [stage('a', 1)], ...caughtUp }])] });
    await expect(pictures(client)).rejects.toThrow('snapshot as complete, but sent no run or no progress');
  });

  it('reconnects when the server is silent for too long', async () => {
    const mute: WatchScript = async function* (_, context) {
      yield { ...run(1), ...percent(1), ...caughtUp };
      await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    };
    const { client, peer } = await connected({ watch: [mute, ended] });
    expect((await pictures(client, { silenceMs: 500 })).map(({ run }) => run.revision)).toEqual([1n, 99n]);
    expect(peer.watches).toHaveLength(2);
  });

  it('cancels the call on the server when the caller leaves the loop, and throws the reason when its signal is aborted', async () => {
    const left = Promise.withResolvers<void>();
    const open: WatchScript = async function* (_, context) {
      context.signal.addEventListener('abort', () => left.resolve());
      yield { ...run(1), ...percent(1), ...caughtUp };
      await left.promise;
    };
    const { client } = await connected({ watch: [open, open] });
    for await (const _ of watchRun(client, { runId: RUN })) break;
    await left.promise;
    const abort = new AbortController();
    const watching = async () => {
      for await (const _ of watchRun(client, { runId: RUN, signal: abort.signal })) abort.abort(new Error('enough'));
    };
    await expect(watching()).rejects.toThrow('enough');
  });

  it('gives up when the server is away for too long, with the cause', async () => {
    const away = () => saying([], refusal(Code.Unavailable, 'DATABASE_UNAVAILABLE', {}, 50));
    const { client } = await connected({ watch: Array.from({ length: 10 }, away) });
    await expect(pictures(client, { giveUpAfterMs: 150 })).rejects.toThrow(/last error: .*DATABASE_UNAVAILABLE/);
  });
});
