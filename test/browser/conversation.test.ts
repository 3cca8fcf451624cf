/** Conversations: steps of sessions of agent frameworks (docs/integrations.md) and of turns. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, addressOf, openPage, takeScreenshot, textsOf, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

const said = (message: object, callId = '') => ({
  observations: [{ type: 'message', callId, content: { json: JSON.stringify(message) } }],
});
const replied = (format: string, reply: object, call?: { name: string; callId: string }) => ({
  actions: [
    { type: 'message', name: format, content: { json: JSON.stringify(reply) } },
    ...(call === undefined ? [] : [{ type: 'tool_call', ...call, content: { json: '{"item":"gear"}' } }]),
  ],
});

/** Returns the id of a trajectory with these steps above an empty root. */
async function record(name: string, steps: readonly object[]): Promise<string> {
  const { trajectories } = scene.client;
  const trajectoryId = (await trajectories.createTrajectory({ name, root: { stepNumber: 0n } })).trajectory?.id ?? '';
  for (const [at, step] of steps.entries())
    await trajectories.appendStep({ trajectoryId, step: { ...step, stepNumber: BigInt(at + 1) } });
  return trajectoryId;
}

const item = (each: object) => replied('openai.responses', { output: [each] });
const text = (words: string) =>
  item({ type: 'message', role: 'assistant', content: [{ type: 'output_text', text: words }] });
const ORDER = [
  said({ role: 'user', content: 'How many gears are there?' }),
  replied(
    'openai.responses',
    { output: [{ type: 'function_call', name: 'stock', call_id: 'c1', arguments: '{"item":"gear"}' }] },
    { name: 'stock', callId: 'c1' },
  ),
  said({ type: 'function_call_output', call_id: 'c1', output: '12' }, 'c1'),
  text('There are 12 gears.'),
];

it('a session is a conversation up to the chosen step, and its fork another one', async () => {
  const { trajectories } = scene.client;
  const main = await record('order 42', [...ORDER, said({ role: 'user', content: 'Order 3.' }), text('Ordered.')]);
  const made = await trajectories.branchTrajectory({ trajectoryId: main, stepNumber: 4n, name: 'order 43' });
  const fork = made.trajectory?.id ?? '';
  const step = { ...said({ role: 'user', content: 'And <b>belts</b>?' }), stepNumber: 5n };
  await trajectories.appendStep({ trajectoryId: fork, step });
  const { page, faults } = await openPage(scene.context);
  await page.goto(`${scene.url}/trees/${main}?step=6`);
  await waitForText(page, 'Ordered.', '.conversation');
  expect((await textsOf(page, '.conversation li .label')).map((each) => each.trim())).toEqual([
    ...['user', 'assistant', 'tool', 'assistant', 'user', 'assistant'],
  ]);
  expect((await textsOf(page, '.conversation li pre')).map((each) => each.trim())).toEqual([
    ...['How many gears are there?', '{ "item": "gear" }', '12', 'There are 12 gears.', 'Order 3.', 'Ordered.'],
  ]);
  expect(await accessibilityFaults(page)).toEqual([]);
  await takeScreenshot(page, 'conversation-light-1500');
  await page.goto(`${scene.url}/trees/${main}?at=${fork}&step=5`);
  await waitForText(page, 'And <b>belts</b>?', '.conversation');
  await waitForText(page, 'There are 12 gears.', '.conversation');
  await page.locator('.conversation li:nth-child(2) button').click();
  await page.waitForSelector('.conversation li:last-child[aria-current]:nth-child(2)');
  expect(new URL(await addressOf(page)).searchParams.get('step')).toBe('2');
  expect(faults).toEqual([]);
  await page.close();
});

it('entries of the Claude Agent SDK and replies of chat are messages, with errors and reasoning', async () => {
  const use = { type: 'tool_use', id: 't1', name: 'Read', input: { path: 'a.txt' } };
  const failed = {
    type: 'tool_result',
    tool_use_id: 't1',
    content: [{ type: 'text', text: 'no such file' }],
    is_error: true,
  };
  const call = { id: 'c', type: 'function', function: { name: 'look', arguments: '{}' } };
  const trajectoryId = await record('claude', [
    said({
      role: 'user',
      content: [
        { type: 'text', text: 'What is in a.txt?' },
        { type: 'image', source: {} },
      ],
    }),
    replied('anthropic.messages', { role: 'assistant', content: [{ type: 'thinking', thinking: 'I read it.' }, use] }),
    said({ role: 'user', content: [failed] }, 't1'),
    replied('openai.chat', { choices: [{ message: { role: 'assistant', content: 'I look.', tool_calls: [call] } }] }),
    { observations: [{ type: 'tool_result', callId: 'c', isError: true, content: { text: 'TimeoutError' } }] },
    { observations: [{ type: 'entry', content: { json: '{"type":"custom-title"}' } }] },
  ]);
  const { page, faults } = await openPage(scene.context);
  await page.goto(`${scene.url}/trees/${trajectoryId}?step=5`);
  await waitForText(page, 'TimeoutError', '.conversation');
  expect((await textsOf(page, '.conversation li')).map((each) => each.replaceAll(/\s+/gu, ' ').trim())).toEqual([
    'user 1 What is in a.txt? image',
    'assistant 2 I read it. Read { "path": "a.txt" }',
    'user 3 error no such file',
    'assistant 4 I look. look {}',
    'tool 5 error TimeoutError',
  ]);
  await page.goto(`${scene.url}/trees/${trajectoryId}?step=6`);
  await waitForText(page, 'custom-title', '.step-body');
  expect(await page.$('.conversation')).toBeNull();
  expect(faults).toEqual([]);
  await page.close();
});
