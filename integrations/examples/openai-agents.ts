/**
 * An agent whose session is stored, continued in another process, corrected and forked. The model is a script.
 *
 *     npm start                                         # the server, in another terminal
 *     npm ci --omit=optional --prefix integrations      # the frameworks
 *     npx node integrations/examples/openai-agents.ts   # or with another ADDRESS: … openai-agents.ts 127.0.0.1:50051
 */
import process from 'node:process';
import { Agent, type AgentOutputItem, run, tool, Usage } from '@openai/agents';
import { assistantMessage, functionCall, modelResponse, ScriptedModel } from '@openai/agents/testing';
import { z } from 'zod';
// In a project of your own: from 'anabranch/client' and 'anabranch/openai-agents'.
import { connectClient } from '../../src/client/index.ts';
import { AnabranchSession } from '../src/openai_agents/index.ts';

const client = connectClient({ address: process.argv[2] });
const sessionId = crypto.randomUUID();

const weather = tool({
  name: 'weather',
  description: 'Returns the weather of a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `Rain in ${city}.`,
});
const reply = (...output: AgentOutputItem[]) => modelResponse({ usage: new Usage(), output });
const model = new ScriptedModel([
  reply(functionCall('weather', { city: 'Oslo' }, { callId: 'call_1' })),
  reply(assistantMessage('It rains in Oslo.')),
  reply(assistantMessage('Take an umbrella.')),
  reply(assistantMessage('Stay at home.')),
]);
const agent = new Agent({ name: 'guide', model, tools: [weather] });

const first = await run(agent, 'How is Oslo?', { session: new AnabranchSession(client, { sessionId }) });
console.log(`first: ${first.finalOutput}`);

// Another process finds the session by its id.
const session = new AnabranchSession(client, { sessionId });
const before = (await session.getItems()).length;
const second = await run(agent, 'What shall I do?', { session });
console.log(`second: ${second.finalOutput}`);

// The session before the second question, asked again: a branch of the trajectory.
const fork = await session.fork(before);
const other = await run(agent, 'What shall I do?', { session: fork });
console.log(`fork: ${other.finalOutput}`);
console.log(`${(await session.getItems()).length} items, ${before} of which the fork shares`);

// The last item is removed from the session, and stays in the tree.
await session.popItem();
console.log(`after popItem: ${(await session.getItems()).length} items`);
client.close();
