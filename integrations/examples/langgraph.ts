/**
 * A graph that asks before it acts, continues in another process, and is forked before the answer.
 *
 *     npm start                                     # the server, in another terminal
 *     npm ci --omit=optional --prefix integrations  # the frameworks
 *     npx node integrations/examples/langgraph.ts   # or with another ADDRESS: … langgraph.ts 127.0.0.1:50051
 */
import process from 'node:process';
import { AIMessage, HumanMessage } from '@langchain/core/messages';
import { FakeListChatModel } from '@langchain/core/utils/testing';
import { Command, END, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
// In a project of your own: from 'anabranch/client' and 'anabranch/langgraph'.
import { connectClient } from '../../src/client/index.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';

const client = connectClient({ address: process.argv[2] });

/** Compiles the graph, as each process does. */
function newGraph() {
  const model = new FakeListChatModel({ responses: ['Shall I delete the file?'] });
  return new StateGraph(MessagesAnnotation)
    .addNode('model', async ({ messages }) => ({ messages: [await model.invoke(messages)] }))
    .addNode('tool', () => {
      const answer: string = interrupt('delete?');
      return { messages: [new AIMessage(answer === 'yes' ? 'Deleted.' : 'I left it alone.')] };
    })
    .addEdge(START, 'model')
    .addEdge('model', 'tool')
    .addEdge('tool', END)
    .compile({ checkpointer: new AnabranchSaver(client) });
}

const thread = { configurable: { thread_id: crypto.randomUUID() } };
const texts = (messages: readonly { content: unknown }[]) => messages.map(({ content }) => content).join(' | ');

await newGraph().invoke({ messages: [new HumanMessage('Tidy up.')] }, thread);
const waiting = await newGraph().getState(thread);
console.log(`waits for ${waiting.next}: ${texts(waiting.values.messages)}`);

const yes = await newGraph().invoke(new Command({ resume: 'yes' }), thread);
console.log(`yes: ${texts(yes.messages)}`);
// The same question again, answered otherwise: a branch of the trajectory.
const copy = await newGraph().updateState(waiting.config, null, '__copy__');
await newGraph().invoke(null, copy);
const no = await newGraph().invoke(new Command({ resume: 'no' }), thread);
console.log(`no: ${texts(no.messages)}`);

const labels = { integration: 'langgraph-js', kind: 'checkpoints', thread: thread.configurable.thread_id };
const { trajectories } = await client.trajectories.listTrajectories({ labels });
for (const { id, branchPoint, nextStepNumber } of trajectories.reverse()) {
  const from = branchPoint === undefined ? 'root' : `branch at ${branchPoint}`;
  console.log(`trajectory ${id}: ${from}, end ${nextStepNumber}`);
}
client.close();
