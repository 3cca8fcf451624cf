/** The page of a server with authentication. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { newSecret } from '../../src/domain/access.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { noise } from '../wire/samples.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { countOf, has, is, openPage, show, textsOf, waitForText } from './views.ts';

/** One red pixel. */
const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==',
  'base64',
);

let database: TestDatabase;
let server: TestServer;
let scene: PageScene;
const secrets = new Map<string, string>();

beforeAll(async () => {
  database = await createMigratedDatabase('sqlite');
  await using open = await startTestServer({ database });
  const admin = connectClient({ address: open.url }, {});
  for (const [name, role, namespaces] of [
    ['writer', Role.WRITE, ['red']],
    ['reader', Role.READ, ['red', 'blue']],
  ] as const) {
    secrets.set(name, (await admin.admin.createKey({ name, role, namespaces: [...namespaces] })).secret);
  }
  admin.close();
  for (const namespace of ['red', 'blue']) {
    const client = connectClient({ address: open.url, namespace }, {});
    await client.trajectories.createTrajectory({ name: `tree of ${namespace}` });
    client.close();
  }
  await open.stop();
  server = await startTestServer({ database, settings: { authenticated: true } });
  scene = await openPageScene(server.url);
});
afterAll(async () => {
  await scene?.close();
  await server?.stop();
  await database?.drop();
});

async function enter(page: Page, secret: string, namespace = ''): Promise<void> {
  await page.waitForSelector('form.key');
  for (const [name, value] of Object.entries({ key: secret, namespace })) {
    await page.$eval(`form.key input[name=${name}]`, (input) => {
      (input as HTMLInputElement).select();
    });
    await page.focus(`form.key input[name=${name}]`);
    await page.keyboard.press('Backspace');
    if (value !== '') await page.type(`form.key input[name=${name}]`, value);
  }
  await Promise.all([page.waitForNavigation(), page.click('form.key button')]);
}

describe('the page of a server with authentication', () => {
  it('asks for a key, says why it was refused, and then shows what the key may see', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, scene.url);
    await waitForText(page, 'only to those who have one');
    await enter(page, newSecret());
    await waitForText(page, 'does not exist on this installation');
    await enter(page, secrets.get('reader')!);
    await waitForText(page, 'name one of them');
    await enter(page, secrets.get('reader')!, 'blue');
    await waitForText(page, 'tree of blue');
    expect(await textsOf(page, 'body')).not.toContainEqual(expect.stringContaining('tree of red'));
    expect(page.url()).toBe(`${scene.url}/`);
    expect(await scene.context.cookies()).toEqual([]);
    await Promise.all([page.waitForNavigation(), page.select('select[aria-label=Namespace]', 'red')]);
    await waitForText(page, 'tree of red');
    await Promise.all([page.waitForNavigation(), page.click(is('button', 'Sign out'))]);
    await waitForText(page, 'only to those who have one');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows each tab what its own key may see, live', async () => {
    const tabs = await Promise.all([openPage(scene.context), openPage(scene.context)]);
    for (const [i, { page }] of tabs.entries()) {
      await show(page, scene.url);
      await enter(page, secrets.get('reader')!, ['red', 'blue'][i]);
      await waitForText(page, `tree of ${['red', 'blue'][i]}`);
    }
    const client = connectClient({ address: server.url, token: secrets.get('writer')! }, {});
    await client.trajectories.createTrajectory({ name: 'a new tree' });
    client.close();
    await waitForText(tabs[0]!.page, 'a new tree');
    expect(await textsOf(tabs[1]!.page, 'body')).not.toContainEqual(expect.stringContaining('a new tree'));
    for (const { page } of tabs) await page.close();
  });

  it('lets a caller who may see all namespaces choose one, also without authentication', async () => {
    await using open = await startTestServer();
    const { page } = await openPage(scene.context);
    const create = async (namespace: string) => {
      const client = connectClient({ address: open.url, namespace }, {});
      await client.trajectories.createTrajectory({ name: `tree of ${namespace}` });
      client.close();
    };
    await create('default');
    await show(page, open.url);
    await waitForText(page, 'tree of default');
    expect(await countOf(page, 'select[aria-label=Namespace]')).toBe(0);
    await create('other');
    await page.reload();
    await page.waitForSelector('select[aria-label=Namespace]');
    await Promise.all([page.waitForNavigation(), page.select('select[aria-label=Namespace]', 'other')]);
    await waitForText(page, 'tree of other');
    expect(await textsOf(page, 'body')).not.toContainEqual(expect.stringContaining('tree of default'));
    expect(await countOf(page, is('button', 'Sign out'))).toBe(0);
    await page.close();
  });

  it('shows images, downloads states, and only the operations that the key may do', async () => {
    const client = connectClient({ address: server.url, token: secrets.get('writer')! }, {});
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'with images' });
    const trajectoryId = trajectory!.id;
    const large = Buffer.concat([PIXEL, noise(20_000, 1)]);
    const step = {
      stepNumber: 0n,
      observations: [{ content: { data: large, mediaType: 'image/png' } }],
      states: [{ name: 'env', data: Buffer.from('{"x":1}'), mediaType: 'application/json' }],
    };
    await client.trajectories.appendStep({ trajectoryId, step });
    client.close();
    const { page } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=0`);
    await enter(page, secrets.get('writer')!);
    await page.waitForSelector('.image img[src^="blob:"]');
    await expect
      .poll(() => page.$eval('.image img', (image) => (image as HTMLImageElement).naturalWidth))
      .toBeGreaterThan(0);
    await page.waitForSelector(has('.operations button', 'Branch here'));
    await Promise.all([page.waitForNavigation(), page.click(is('button', 'Sign out'))]);
    await enter(page, secrets.get('reader')!, 'red');
    await page.waitForSelector('.image img[src^="blob:"]');
    expect(await countOf(page, '.operations button')).toBe(0);
    await page.close();
  });
});
