import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { SearchStepsRequestSchema, type SearchStepsResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { searchSteps } from '../../src/service/trajectory/search.ts';
import { refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { type AppScene, all, describeApp, step } from './on_app.ts';

type Request = MessageInitShape<typeof SearchStepsRequestSchema>;

async function search(scene: AppScene, request: Request): Promise<SearchStepsResponse[]> {
  const call = callOf(scene.app, scene.caller);
  return (await all(searchSteps.messages(create(SearchStepsRequestSchema, request), call))) as SearchStepsResponse[];
}

function places(messages: readonly SearchStepsResponse[]): string[] {
  return messages.flatMap(({ hits }) => hits.map(({ trajectoryId, stepNumber }) => `${trajectoryId} ${stepNumber}`));
}

describeApp('SearchSteps', (on) => {
  it('RD10: finds steps from the newest trajectory to the oldest, in a tree, a lineage or everywhere', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['red apple', 'green', 'Red pear', 'blue'], { taskId: 't' });
    const branch = await scene.branch(root, 2n);
    await scene.write(branch, [step(3n, 'RED'), step(4n, 'grey')]);
    const other = await scene.createWith(['red']);
    const own = [`${root.id} 0`, `${root.id} 2`];
    expect(places(await search(scene, { text: 'red' }))).toEqual([`${other.id} 0`, `${branch.id} 3`, ...own]);
    expect(places(await search(scene, { text: 'red', treeId: branch.id }))).toEqual([`${branch.id} 3`, ...own]);
    expect(places(await search(scene, { text: 'red', trajectoryId: branch.id }))).toEqual([...own, `${branch.id} 3`]);
    expect(places(await search(scene, { text: 'red', taskId: 't' }))).toEqual([`${branch.id} 3`, ...own]);
    expect(places(await search(scene, { text: 'none' }))).toEqual([]);
    const last = (await search(scene, { text: 'red' })).at(-1);
    expect(last).toMatchObject({ searchedSteps: 7n, resumeToken: '' });
    expect(places(await search(on.scene(), { text: 'red' }))).toEqual([]);
  });

  it('RD10: continues after any message, and ends after max_hits, with the same matches as a naive search', async () => {
    const scene = on.scene();
    const expected: string[] = [];
    for (let i = 0; i < 4; i += 1) {
      const made = await scene.create();
      const words = Array.from({ length: 300 }, (_, n) => ((n * 7 + i) % 10 === 0 ? `the needle ${n}` : `hay ${n}`));
      await scene.write(
        made,
        words.map((word, n) => step(BigInt(n), word)),
      );
      const found = words.flatMap((word, n) => (word.includes('needle') ? [`${made.id} ${n}`] : []));
      expected.unshift(...found);
    }
    expect(places(await search(scene, { text: 'NEEDLE', maxHits: 1000 }))).toEqual(expected);
    for (const maxHits of [7, 50]) {
      const found: string[] = [];
      let resumeToken = '';
      do {
        const messages = await search(scene, { text: 'needle', maxHits, resumeToken });
        found.push(...places(messages));
        resumeToken = messages.at(-1)?.resumeToken ?? '';
      } while (resumeToken !== '');
      expect(found).toEqual(expected);
    }
  });

  it('RD10: a token of another text is refused', async () => {
    const scene = on.scene();
    await scene.createWith(['a', 'a']);
    const [first] = await search(scene, { text: 'a', maxHits: 1 });
    const { reason } = await refusalOf(search(scene, { text: 'b', resumeToken: first!.resumeToken }));
    expect(reason).toBe('INVALID_PAGE_TOKEN');
  });
});
