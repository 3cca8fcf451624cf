/** Threads and sessions that the packages for agent frameworks have written (docs/integrations.md). */
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { run } from '../languages/run.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, countOf, openPage, ROWS, takeScreenshot, textsOf, waitForText } from './views.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const PYTHON = path.join(ROOT, 'clients/python');

let scene: PageScene;
/** Ids of the trees, by framework. */
let trees: Readonly<Record<'langgraph' | 'openai' | 'claude', string>>;
beforeAll(async () => {
  const [opened, venv] = await Promise.all([
    openPageScene(),
    run('./venv', ['python-sdk', 'requirements-test.txt'], { cwd: PYTHON, minutes: 10 }),
  ]);
  scene = opened;
  const env = { ANABRANCH_ADDRESS: new URL(scene.url).host, PYTHONPATH: path.join(PYTHON, 'src') };
  const program = path.join(import.meta.dirname, 'framework_sessions.py');
  trees = JSON.parse(await run(path.join(venv.trim(), 'bin/python'), [program], { env, minutes: 2 }));
}, 900_000);
afterAll(() => scene?.close());

/** Returns the names of the messages of the shown conversation, their steps and their texts, each in a line. */
async function messagesOf(page: Parameters<typeof textsOf>[0]): Promise<string[]> {
  return (await textsOf(page, '.conversation li')).map((each) => each.replaceAll(/\s+/gu, ' ').trim());
}

/** Returns the trajectories of a tree by their branch points, the root first. */
async function lines(treeId: string): Promise<{ id: string; end: number }[]> {
  const { nodes } = await scene.client.trajectories.getTree({ trajectoryId: treeId });
  const order = nodes.map(({ trajectory }) => trajectory!);
  const sorted = order.toSorted((one, other) => Number((one.branchPoint ?? -1n) - (other.branchPoint ?? -1n)));
  return sorted.map(({ id, nextStepNumber }) => ({ id, end: Number(nextStepNumber) }));
}

/** Opens the last step of a trajectory of a tree. */
async function opened(treeId: string, at: { readonly id: string; readonly end: number }) {
  const window = await openPage(scene.context);
  await window.page.goto(`${scene.url}/trees/${treeId}?at=${at.id}&step=${at.end - 1}`);
  return window;
}

it('a thread of LangGraph is a conversation, its channels are a state, and its fork is a branch', async () => {
  const [thread, fork] = await lines(trees.langgraph);
  const { page, faults } = await opened(trees.langgraph, thread!);
  await waitForText(page, 'It is Paris.', '.conversation');
  const shared = ['user 1 What is the capital of France?', 'assistant 2 I look it up. capital { "country": "France" }'];
  expect(await messagesOf(page)).toEqual([...shared, 'tool 3 Paris', 'assistant 4 It is Paris.']);
  expect(await countOf(page, ROWS)).toBe(2);
  await waitForText(page, '/turns', '.states');
  await waitForText(page, 'answered', '.states');
  await page.$eval('.states', (states) => states.scrollIntoView());
  await takeScreenshot(page, 'langgraph-light-1500');
  expect(await accessibilityFaults(page)).toEqual([]);
  await page.goto(`${scene.url}/trees/${trees.langgraph}?at=${fork!.id}&step=${fork!.end - 1}`);
  await waitForText(page, 'It is Lyon.', '.conversation');
  expect(await messagesOf(page)).toEqual([...shared, 'tool 3 Lyon', 'assistant 4 It is Lyon.']);
  expect(faults).toEqual([]);
  await page.close();
});

it('a session of the OpenAI Agents SDK shows what was popped, what followed it, and its fork', async () => {
  const [fork, popped] = (await lines(trees.openai)).slice(1);
  const { page, faults } = await opened(trees.openai, { id: trees.openai, end: 5 });
  await waitForText(page, 'There are 12 gears.', '.conversation');
  const shared = ['user 1 How many gears are there?', 'assistant 2 stock { "item": "gear" }', 'tool 3 12'];
  expect(await messagesOf(page)).toEqual([...shared, 'assistant 4 There are 12 gears.']);
  expect(await countOf(page, ROWS)).toBe(3);
  await takeScreenshot(page, 'openai-agents-light-1500');
  await page.goto(`${scene.url}/trees/${trees.openai}?at=${popped!.id}&step=${popped!.end - 1}`);
  await waitForText(page, 'A dozen.', '.conversation');
  expect(await messagesOf(page)).toEqual([...shared, 'assistant 4 A dozen.']);
  await page.goto(`${scene.url}/trees/${trees.openai}?at=${fork!.id}&step=${fork!.end - 1}`);
  await waitForText(page, 'Which ones?', '.conversation');
  expect(await messagesOf(page)).toEqual(['user 1 How many belts are there?', 'assistant 2 Which ones?']);
  expect(faults).toEqual([]);
  await page.close();
});

it('a session of the Claude Agent SDK is a conversation, and its fork another one', async () => {
  const [session, fork] = await lines(trees.claude);
  const { page, faults } = await opened(trees.claude, { ...session!, end: 5 });
  await waitForText(page, 'One line: hello.', '.conversation');
  const shared = ['user 1 What is in a.txt?', 'assistant 2 I read it. Read { "path": "a.txt" }'];
  expect(await messagesOf(page)).toEqual([...shared, 'user 3 hello', 'assistant 4 One line: hello.']);
  expect(await countOf(page, ROWS)).toBe(2);
  await takeScreenshot(page, 'claude-agent-sdk-light-1500');
  await page.goto(`${scene.url}/trees/${trees.claude}?at=${fork!.id}&step=${fork!.end - 1}`);
  await waitForText(page, 'Do not read it.', '.conversation');
  expect((await messagesOf(page)).slice(0, 2)).toEqual(shared);
  expect((await messagesOf(page)).at(-1)).toMatch(/^user \d Do not read it\.$/u);
  expect(faults).toEqual([]);
  await page.close();
});
