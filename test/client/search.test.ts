import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, type SearchOptions, searchSteps } from '../../src/client/index.ts';
import { MAIN_LINE, plantTree, treeId } from '../cli/grove.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { connected } from './connected.ts';
import { refusal } from './scripted-peer.ts';

/** Answers with `total` matches, two in a message, and breaks after each count of messages in `cuts` in turn. */
async function searching(total: number, cuts: readonly number[], options: Partial<SearchOptions> = {}) {
  const left = [...cuts];
  const requests: [resumeToken: string, maxHits: number][] = [];
  const { client } = await connected({
    trajectories: {
      async *searchSteps({ resumeToken, maxHits }) {
        requests.push([resumeToken, maxHits]);
        const from = Number(resumeToken || 0);
        let messages = left.shift() ?? Number.POSITIVE_INFINITY;
        for (let at = from; at < Math.min(total, from + maxHits); at += 2) {
          if (messages-- === 0) throw new ConnectError('lost', Code.Unavailable);
          const hits = [at, at + 1].map((n) => ({ trajectoryId: 't', stepNumber: BigInt(n) }));
          const end = at + 2 >= total ? '' : `${at + 2}`;
          yield { hits, searchedSteps: BigInt(at + 2 - from), resumeToken: end };
        }
      },
    },
  });
  const found: number[] = [];
  const searched: bigint[] = [];
  const onProgress: SearchOptions['onProgress'] = ({ searchedSteps }) => void searched.push(searchedSteps);
  for await (const { stepNumber } of searchSteps(client, { text: 'x', onProgress, ...options })) {
    found.push(Number(stepNumber));
  }
  return { found, requests, searched };
}

const upTo = (end: number) => Array.from({ length: end }, (_, i) => i);

describe('searchSteps', () => {
  it('RD10: returns each match once over lost connections, and counts all steps that were searched', async () => {
    const { found, requests, searched } = await searching(12, [2, 0, 1]);
    expect(found).toEqual(upTo(12));
    expect(requests.map(([token]) => token)).toEqual(['', '4', '4', '6']);
    expect(searched).toEqual([2n, 4n, 6n, 8n, 10n, 12n]);
  });

  it('RD10: makes further calls until everything is searched, with the same fields as the first', async () => {
    const { found, requests } = await searching(2500, []);
    expect(found).toEqual(upTo(2500));
    expect(requests).toEqual([
      ['', 1000],
      ['1000', 1000],
      ['2000', 1000],
    ]);
  });

  it('RD10: ends after maxHits, also if connections were lost before', async () => {
    expect((await searching(100, [], { maxHits: 5 })).found).toEqual(upTo(5));
    expect((await searching(100, [1, 1], { maxHits: 7 })).found).toEqual(upTo(7));
    expect((await searching(100, [], { maxHits: 8 })).requests).toHaveLength(1);
  });

  it('throws a permanent error at once', async () => {
    const { client } = await connected({
      trajectories: {
        // biome-ignore lint/correctness/useYield: the call fails before its first message
        async *searchSteps() {
          throw refusal(Code.NotFound, 'RUN_NOT_FOUND');
        },
      },
    });
    await expect(searchSteps(client, { text: 'x' }).next()).rejects.toThrow('RUN_NOT_FOUND');
  });

  describe('with a server', () => {
    let server: TestServer;
    let client: AnabranchClient;
    beforeAll(async () => {
      server = await startTestServer();
      client = connectClient({ address: server.url });
      await plantTree(client);
    });
    afterAll(async () => {
      client?.close();
      await server?.stop();
    });

    it('RD10: finds the matches of a trajectory, a tree, or of everything', async () => {
      const count = async (options: Partial<SearchOptions>) => {
        let hits = 0;
        for await (const { match } of searchSteps(client, { text: 'BEND', ...options })) {
          expect(match).toBe('bend');
          hits += 1;
        }
        return hits;
      };
      expect(await count({ trajectoryId: MAIN_LINE })).toBe(30);
      expect(await count({ treeId: treeId(2) })).toBe(50);
      expect(await count({ maxHits: 3 })).toBe(3);
      expect(await count({})).toBe(50);
    });
  });
});
