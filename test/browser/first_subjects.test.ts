/** The watches that the first script of the page begins. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseAddress } from '../../page/src/address.ts';
import { watchRoots, watchRunHere, watchRuns, watchSeries, watchTree } from '../../page/src/api.ts';
import type { Api } from '../../page/src/client.ts';
import { filterOf } from '../../page/src/home/filter.ts';
import { firstSubjects } from '../../page/src/watch/first_subjects.ts';
import { watchThrough } from '../../page/src/watch/watch.ts';
import { Growing } from './growing.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { openPage, waitForWhole } from './views.ts';

const ID = '0199f3a2-7c11-7d2e-8a4b-0123456789ab';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** Returns the subjects of watches. */
async function subjectsOf(...watches: readonly AsyncGenerator<unknown>[]): Promise<Uint8Array[]> {
  const added: Uint8Array[] = [];
  watchThrough({
    add: (subject) => {
      added.push(subject);
      return () => undefined;
    },
  });
  for (const [at, watch] of watches.entries()) {
    void watch.next();
    await expect.poll(() => added.length).toBe(at + 1);
  }
  return added;
}

const addressAt = (path: string, search = '') => parseAddress(path, search);

describe('the watches that begin before the page', () => {
  const events = { signal: new AbortController().signal, onCut: () => {}, onCaughtUp: () => {} };

  it('are those of the tree view', async () => {
    expect(firstSubjects(addressAt(`/trees/${ID}`, '?step=3'))).toEqual(await subjectsOf(watchTree(ID, events)));
    expect(firstSubjects(addressAt('/trees/%C3%A9'))).toEqual(await subjectsOf(watchTree('é', events)));
  });

  it('are those of the run view', async () => {
    const asked = await subjectsOf(watchRunHere({} as Api, ID, events), watchSeries(ID, events));
    expect(firstSubjects(addressAt(`/runs/${ID}`))).toEqual(asked);
  });

  it('are those of the lists without a filter, and of no other view', async () => {
    const asked = await subjectsOf(watchRuns(filterOf(new URLSearchParams()), events), watchRoots(events));
    expect(firstSubjects(addressAt('/'))).toEqual(asked);
    for (const [path, search] of [['/', '?text=x'], ['/search'], [`/rollouts/${ID}`], ['/nowhere']] as const) {
      expect(firstSubjects(addressAt(path, search))).toEqual([]);
    }
  });
});

describe('a view', () => {
  it('is watched by one call, which begins before the view is loaded', async () => {
    const growing = await Growing.create(scene.client, 'early');
    for (const path of ['/', `/trees/${growing.trajectoryId}`, `/runs/${growing.runId}`]) {
      const { page, faults } = await openPage(scene.context);
      // The calls of workers are not seen.
      await page.evaluateOnNewDocument('delete globalThis.SharedWorker');
      const requests: string[] = [];
      page.on('request', (request) => requests.push(request.url().split('/').at(-1) ?? ''));
      await page.goto(scene.url + path);
      await page.waitForSelector(path === '/' ? 'tbody a' : path.startsWith('/t') ? '.step-body' : '.metric canvas');
      await waitForWhole(page);
      expect([path, requests.filter((name) => name === 'Watch')]).toEqual([path, ['Watch']]);
      expect(faults).toEqual([]);
      await page.close();
    }
  });
});
