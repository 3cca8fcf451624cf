/** Tokens of actions, wherever they are stored. */
import { create } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { ActionSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { MOST_TOKENS, readTokens, withTokens } from '../../page/src/step/tokens.ts';

const moved = create(ActionSchema, {
  type: 'anabranch.logprobs',
  content: { tensor: { dtype: '<f4', shape: [3], stateDigest: 'b'.repeat(64) } },
});

it('log-probabilities that are stored as the last action belong to the first one, and are no action', () => {
  const [first, second] = [create(ActionSchema, { type: 'text' }), create(ActionSchema, { type: 'tool' })];
  expect(withTokens([first, second, moved])).toEqual([
    { action: first, logprobsState: 'b'.repeat(64) },
    { action: second, logprobsState: '' },
  ]);
  expect(withTokens([moved])).toEqual([{ action: moved, logprobsState: '' }]);
  expect(withTokens([])).toEqual([]);
});

it('tokens are read from their states, as many as are shown', async () => {
  const action = create(ActionSchema, { tokenIdsState: 'a'.repeat(64) });
  const stored = new Map([
    ['a'.repeat(64), Buffer.from(Int32Array.of(1, -2, 3).buffer)],
    ['b'.repeat(64), Buffer.from(Float32Array.of(-0.5, Number.NaN, Number.NEGATIVE_INFINITY).buffer)],
  ]);
  const asked: number[] = [];
  const read = async (digest: string, bytes: number) => {
    asked.push(bytes);
    const found = Uint8Array.from(stored.get(digest) ?? []);
    return { data: new DataView(found.buffer), size: 40_000 };
  };
  expect(await readTokens({ action, logprobsState: 'b'.repeat(64) }, read)).toEqual({
    ids: [1, -2, 3],
    logprobs: [-0.5, Number.NaN, Number.NEGATIVE_INFINITY],
    count: 10_000,
  });
  expect(asked).toEqual([4 * MOST_TOKENS, 4 * MOST_TOKENS]);
});

it('tokens within the step are not read', async () => {
  const action = create(ActionSchema, { tokenIds: [1, 2], logprobs: [-1, -2] });
  const never = () => Promise.reject(new Error('nothing is read'));
  const tokens = await readTokens({ action, logprobsState: '' }, never);
  expect(tokens).toEqual({ ids: [1, 2], logprobs: [-1, -2], count: 2 });
});
