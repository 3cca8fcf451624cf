import { createHash } from 'node:crypto';
import { Code, ConnectError, type ServiceImpl } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import type { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { downloadState, reasonOf, uploadState } from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { refusal } from './scripted-peer.ts';

const bytes = Uint8Array.from({ length: 600_000 }, (_, i) => i % 251);
const digest = createHash('sha256').update(bytes).digest('hex');
const REFERENCE = { trajectoryId: '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a', stepNumber: 5n, name: 'agent' };

/** Sends this many chunks of 100 kB of a state in each call, then breaks off. */
function serving(whole: Uint8Array, chunksACall: number, offsets: bigint[]): Partial<ServiceImpl<typeof StateService>> {
  return {
    async *getState(request) {
      offsets.push(request.offset);
      const size = BigInt(whole.byteLength);
      const end = Math.min(whole.byteLength, Number(request.offset) + chunksACall * 100_000);
      let offset = Number(request.offset);
      if (request.reference !== undefined) expect(request.reference).toMatchObject(REFERENCE);
      yield { state: { digest: request.digest || digest, size }, chunk: whole.subarray(offset, offset) };
      for (; offset < end; offset += 100_000) yield { chunk: whole.subarray(offset, offset + 100_000) };
      if (end < whole.byteLength) throw new ConnectError('cut', Code.Unavailable);
    },
  };
}

describe('downloadState', () => {
  it('S4: continues where it was after each cut', async () => {
    const offsets: bigint[] = [];
    const { client } = await connected({ states: serving(bytes, 4, offsets) });
    expect(Buffer.from(await downloadState(client, digest)).equals(bytes)).toBe(true);
    expect(offsets).toEqual([0n, 400_000n]);
  });

  it('S4: reads a state of a step by its reference', async () => {
    const offsets: bigint[] = [];
    const { client } = await connected({ states: serving(bytes, 4, offsets) });
    expect(Buffer.from(await downloadState(client, REFERENCE)).equals(bytes)).toBe(true);
    expect(offsets).toEqual([0n, 400_000n]);
  });

  it('S3: bytes that do not match the digest are never returned', async () => {
    const { client } = await connected({ states: serving(bytes.toReversed(), 10, []) });
    for (const state of [digest, REFERENCE]) {
      await expect(downloadState(client, state)).rejects.toThrow(`for state ${digest} do not have that digest`);
    }
  });

  it('an empty state is returned as a state', async () => {
    const empty = createHash('sha256').digest('hex');
    const { client } = await connected({ states: serving(new Uint8Array(), 1, []) });
    expect(await downloadState(client, empty)).toEqual(new Uint8Array());
  });

  it('an unknown state causes an error at once', async () => {
    const { client } = await connected({
      states: {
        // biome-ignore lint/correctness/useYield: it only refuses
        async *getState() {
          throw refusal(Code.NotFound, 'STATE_NOT_FOUND', { digest });
        },
      },
    });
    expect(await downloadState(client, digest).catch(reasonOf)).toBe('STATE_NOT_FOUND');
  });
});

describe('uploadState', () => {
  it('S1: returns the SHA-256, and sends nothing if the state is stored already', async () => {
    const { client } = await connected({
      states: { hasStates: ({ digests }) => ({ states: digests.map((each) => ({ digest: each })) }) },
    });
    expect(await uploadState(client, bytes)).toBe(digest);
  });

  it('S4: sends the digest first and chunks of at most 256 KiB; an empty state too', async () => {
    const sizes: number[][] = [];
    const { client } = await connected({
      states: {
        hasStates: () => ({}),
        async putState(chunks) {
          const got: number[] = [];
          for await (const { chunk } of chunks) got.push(chunk.byteLength);
          sizes.push(got);
          return {};
        },
      },
    });
    await uploadState(client, bytes);
    await uploadState(client, new Uint8Array());
    expect(sizes).toEqual([[262_144, 262_144, 75_712], [0]]);
  });
});
