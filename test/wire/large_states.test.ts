import { createHash, type Hash } from 'node:crypto';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type StatePiece, StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';
import { noise } from './samples.ts';
import type { WireClient } from './story.ts';

const MIB = 1024 * 1024;
const CHUNK = 256 * 1024;
const STATE_BYTES = dose(4, 8) * MIB;
const SMALL_BYTES = 2 * CHUNK;
/**
 * Steps of the tree with a large state. The usual dose: two owners have one, and reads of every third step find one.
 */
const LARGE_STEPS: readonly number[] = dose([1, 3, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
/** States in progress at the same time: 32 or 64 MiB if any side held them whole. */
const AT_ONCE = 8;
/** Bytes that client and server together may hold. */
const MOST = dose(26, 40) * MIB;
/** Messages that bring a reader into the middle of the first large state, or of the second one. */
const MESSAGES = dose(12, 40);

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Bytes in use by this process, which is both client and server. */
function heldBytes(): number {
  collectGarbage();
  collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

/** A barrier for this many participants: the last to arrive measures the memory, then all continue. */
function meeting(count: number): { readonly held: () => number; come(): Promise<void> } {
  const before = heldBytes();
  const { promise, resolve } = Promise.withResolvers<void>();
  let coming = count;
  let held = 0;
  return {
    held: () => held,
    come: () => {
      coming -= 1;
      if (coming === 0) {
        held = heldBytes() - before;
        resolve();
      }
      return promise;
    },
  };
}

/** The bytes of state `seed`, a chunk at a time; all chunks of all states differ. */
function* chunksOf(seed: number, bytes = STATE_BYTES): Generator<Uint8Array> {
  const chunk = noise(CHUNK, seed + 1);
  for (let i = 0; i < bytes / CHUNK; i += 1) {
    const copy = chunk.slice();
    new DataView(copy.buffer).setUint32(0, i);
    yield copy;
  }
}

function digestOf(seed: number, bytes = STATE_BYTES): string {
  const hash = createHash('sha256');
  for (const chunk of chunksOf(seed, bytes)) hash.update(chunk);
  return hash.digest('hex');
}

function bytesAt(stepNumber: number): number {
  return LARGE_STEPS.includes(stepNumber) ? STATE_BYTES : SMALL_BYTES;
}

describe.each(ENGINES)(`states of ${STATE_BYTES / MIB} MiB, on %s`, (engine) => {
  let server: TestServer;
  let client: WireClient;
  const digests = Array.from({ length: AT_ONCE }, (_, seed) => digestOf(seed));
  /** Owner, step number and state of each step of the last of four trajectories, each a branch of the one before. */
  const expected: { owner: string; stepNumber: bigint; digest: string }[] = [];
  let leaf = '';

  beforeAll(async () => {
    server = await startTestServer({ engine });
    const transport = createGrpcTransport({ baseUrl: server.url });
    client = {
      trajectories: createClient(TrajectoryService, transport),
      states: createClient(StateService, transport),
      runs: createClient(RunService, transport),
      rollouts: createClient(RolloutService, transport),
    };
  });
  afterAll(() => server.stop());

  it('S4: are uploaded in chunks, many concurrently, and neither side ever holds a whole one', async () => {
    const { come, held } = meeting(AT_ONCE);
    async function* frames(seed: number) {
      let left = STATE_BYTES / CHUNK;
      for (const chunk of chunksOf(seed)) {
        left -= 1;
        if (left === 0) await come();
        yield { chunk };
      }
    }
    const put = await Promise.all(digests.map((_, seed) => client.states.putState(frames(seed))));
    expect(put.map(({ state }) => state?.digest)).toEqual(digests);
    expect(held()).toBeLessThan(MOST);
  });

  it('W9: are appended by digest, to branches of branches', async () => {
    const { trajectories } = client;
    const states = digests.map((large, i) => (LARGE_STEPS.includes(i) ? large : digestOf(i, SMALL_BYTES)));
    for (const i of states.keys()) if (!LARGE_STEPS.includes(i)) await client.states.putState(smallFrames(i));
    leaf = (await trajectories.createTrajectory({})).trajectory!.id;
    for (let at = 0; at < AT_ONCE; at += 2) {
      if (at > 0) {
        const branch = await trajectories.branchTrajectory({ trajectoryId: leaf, stepNumber: BigInt(at - 1) });
        leaf = branch.trajectory!.id;
      }
      const { call } = await AppendCall.open(trajectories, { trajectoryId: leaf, writerId: 'w' });
      for (let i = at; i < at + 2; i += 1) {
        call.send({ steps: [{ stepNumber: BigInt(i), states: [{ digest: states[i]!, mediaType: `number/${i}` }] }] });
        expected.push({ owner: leaf, stepNumber: BigInt(i), digest: states[i]! });
      }
      await call.acked(BigInt(at + 2));
      // The parent gets steps after the branch point; the branch must not see them.
      call.send({ steps: [{ stepNumber: BigInt(at + 2), states: [{ digest: digests[0]! }] }] });
      await call.acked(BigInt(at + 3));
      await call.close();
    }
  });

  it.each([1n, 3n])(
    'S5: are read across three branch points, every k-th of them (%s), byte for byte',
    async (every) => {
      const read: { owner: string; stepNumber: bigint; digest: string }[] = [];
      for await (const state of statesOf(leaf, every)) read.push(state);
      // The last step belongs to the leaf, and is above every branch point.
      const all = [...expected, { owner: leaf, stepNumber: BigInt(AT_ONCE), digest: digests[0]! }];
      expect(read).toEqual(all.filter((_, i) => BigInt(i) % every === 0n));
    },
  );

  it('S5, RD3: are read by many clients concurrently, and neither side ever holds a whole one', async () => {
    const { come, held } = meeting(AT_ONCE);
    const readers = Array.from({ length: AT_ONCE }, async () => {
      let messages = 0;
      const leaving = new AbortController();
      for await (const { pieces } of client.states.readStates(
        { range: { trajectoryId: leaf } },
        { signal: leaving.signal },
      )) {
        expect(pieces.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThanOrEqual(CHUNK);
        messages += 1;
        if (messages < MESSAGES) continue;
        await come();
        // Leaving the loop without this would leave the call open, with bytes in transit.
        return leaving.abort();
      }
    });
    await Promise.all(readers);
    expect(held()).toBeLessThan(MOST);
  });

  /** The states of a trajectory, each hashed as its chunks arrive, which must follow each other without a gap. */
  async function* statesOf(trajectoryId: string, every: bigint) {
    let hash: Hash | undefined;
    let next = 0n;
    for await (const message of client.states.readStates({ range: { trajectoryId, every } })) {
      for (const piece of message.pieces) {
        if (piece.offset === 0n) {
          expect(hash, 'the state before was whole').toBeUndefined();
          hash = createHash('sha256');
          next = 0n;
        }
        expect(piece.offset).toBe(next);
        hash!.update(piece.data);
        next += BigInt(piece.data.length);
        if (next < piece.size) continue;
        expect(piece).toMatchObject(sizeAndType(piece));
        yield { owner: message.trajectoryId, stepNumber: piece.stepNumber, digest: hash!.digest('hex') };
        hash = undefined;
      }
    }
  }
});

async function* smallFrames(seed: number) {
  for (const chunk of chunksOf(seed, SMALL_BYTES)) yield { chunk };
}

function sizeAndType({ stepNumber }: StatePiece): Partial<StatePiece> {
  return {
    size: BigInt(bytesAt(Number(stepNumber))),
    mediaType: stepNumber === BigInt(AT_ONCE) ? '' : `number/${stepNumber}`,
  };
}
