import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import type { ReadTrajectoriesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import {
  readTrajectories,
  readTrajectoryParts,
  type TrajectoryReadOptions,
  type TrajectoryWithSteps,
} from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { refusal } from './scripted-peer.ts';

type Answer = MessageInitShape<typeof ReadTrajectoriesResponseSchema>;

const steps = (...numbers: number[]) => numbers.map((number) => ({ stepNumber: BigInt(number) }));
const blob = (digest: string) => ({ digest, data: Buffer.from(digest) });

/** Three trajectories: in several messages, deleted, and without steps. */
const MESSAGES: readonly Answer[] = [
  { blobs: [blob('a')] },
  { trajectory: { id: 'one' }, steps: steps(3, 4) },
  { blobs: [blob('b')] },
  { steps: steps(5) },
  { steps: steps(6), trajectoryDone: true },
  { trajectory: { id: 'two' }, steps: steps(0) },
  { trajectoryDone: true, deleted: true },
  { trajectory: { id: 'three' }, trajectoryDone: true },
];

/** The token of a message: how many have been sent. A message with blobs has that of the one before. */
function tokenOf(index: number): string {
  const at = MESSAGES[index]!.blobs === undefined ? index : index - 1;
  return at < 0 ? '' : `${at + 1}`;
}

/** Sends the messages after a token, and breaks after each count of `cuts` in turn. */
async function reading(cuts: readonly number[], options: TrajectoryReadOptions = {}, error = lost()) {
  const left = [...cuts];
  const requests: string[] = [];
  const { client } = await connected({
    trajectories: {
      async *readTrajectories({ resumeToken }) {
        requests.push(resumeToken);
        const from = Number(resumeToken || 0);
        const cut = left.shift();
        for (const [i, message] of MESSAGES.entries()) {
          if (i < from) continue;
          if (cut !== undefined && i >= from + cut) throw error;
          yield { ...message, resumeToken: tokenOf(i) };
        }
      },
    },
  });
  const found: TrajectoryWithSteps[] = [];
  for await (const each of readTrajectories(client, options)) found.push({ ...each, blobs: new Map(each.blobs) });
  return { found, requests };
}

function lost(): ConnectError {
  return new ConnectError('lost', Code.Unavailable);
}

const shown = (found: readonly TrajectoryWithSteps[]) =>
  found.map(({ trajectory, steps: of, blobs, deleted, resumeToken }) => [
    trajectory.id,
    of.map(({ stepNumber }) => Number(stepNumber)),
    [...blobs.keys()],
    deleted,
    resumeToken,
  ]);

const ALL = [
  ['one', [3, 4, 5, 6], ['a', 'b'], false, '5'],
  ['two', [0], ['a', 'b'], true, '7'],
  ['three', [], ['a', 'b'], false, '8'],
];

describe('readTrajectories', () => {
  it('RD6: returns each trajectory with its steps and the bytes of their states', async () => {
    const { found, requests } = await reading([]);
    expect(shown(found)).toEqual(ALL);
    expect(requests).toEqual(['']);
    expect(Buffer.from(found[0]!.blobs.get('b')!).toString()).toBe('b');
  });

  it.each(MESSAGES.map((_, i) => i))(
    'R2, RD6: after a connection that is lost after %i messages it continues',
    async (cut) => {
      const { found, requests } = await reading([cut]);
      expect(shown(found)).toEqual(ALL);
      expect(requests).toEqual(['', cut === 0 ? '' : tokenOf(cut - 1)]);
    },
  );

  it('R2, RD6: continues after many lost connections, and after the end of a slow reader', async () => {
    const slow = refusal(Code.ResourceExhausted, 'SLOW_READER', {}, 1);
    const { found } = await reading([2, 2, 1, 1, 2], {}, slow);
    expect(shown(found)).toEqual(ALL);
  });

  it('RD6: begins after a token, and sends filters', async () => {
    const { found, requests } = await reading([], { resumeToken: '5', taskId: 'task' });
    expect(shown(found).map(([id]) => id)).toEqual(['two', 'three']);
    expect(requests).toEqual(['5']);
  });

  it('throws permanent errors, and the reason of the signal', async () => {
    const refused = refusal(Code.InvalidArgument, 'INVALID_PAGE_TOKEN', {});
    await expect(reading([3], {}, refused)).rejects.toThrow(ConnectError);
    const reason = new Error('enough');
    await expect(reading([3], { signal: AbortSignal.abort(reason) })).rejects.toThrow('enough');
  });

  it('RD6: readTrajectoryParts returns steps as they arrive, each trajectory with one last part', async () => {
    const { client } = await connected({
      trajectories: {
        async *readTrajectories() {
          yield* MESSAGES;
        },
      },
    });
    const parts: unknown[] = [];
    for await (const { trajectory, steps: own, done } of readTrajectoryParts(client)) {
      parts.push([trajectory.id, own.map(({ stepNumber }) => Number(stepNumber)), done]);
    }
    expect(parts).toEqual([
      ['one', [3, 4], false],
      ['one', [5], false],
      ['one', [6], true],
      ['two', [0], false],
      ['two', [], true],
      ['three', [], true],
    ]);
  });

  it('O1: a step that is not the next one is an error', async () => {
    const { client } = await connected({
      trajectories: {
        async *readTrajectories() {
          yield { trajectory: { id: 'one' }, steps: steps(0, 2), trajectoryDone: true };
        },
      },
    });
    await expect(readTrajectories(client).next()).rejects.toThrow('the server sent step 2: expected step 1');
  });
});
