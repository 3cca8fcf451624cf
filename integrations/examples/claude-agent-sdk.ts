/**
 * Transcripts of the Claude Agent SDK in Anabranch: mirrored, read on another machine, and forked. The conversation is
 * given, as the SDK mirrors one: with `query({ prompt, options: { sessionStore } })` a model writes it.
 *
 *     npm start                                            # the server, in another terminal
 *     npm ci --omit=optional --prefix integrations         # the frameworks
 *     npx node integrations/examples/claude-agent-sdk.ts   # or with another ADDRESS as argument
 */
import process from 'node:process';
import { getSessionMessages, type SessionMessage, type SessionStoreEntry } from '@anthropic-ai/claude-agent-sdk';
// In a project of your own: from 'anabranch/client' and 'anabranch/claude-agent-sdk'.
import { connectClient } from '../../src/client/index.ts';
import { AnabranchSessionStore } from '../src/claude_agent_sdk/index.ts';

const client = connectClient({ address: process.argv[2] });
const sessionId = crypto.randomUUID();
/** The SDK derives the key of a project from its folder. */
const dir = '/';
const key = { projectKey: '-', sessionId };

function entryOf(type: 'user' | 'assistant', text: string, parent?: SessionStoreEntry): SessionStoreEntry {
  const content = type === 'user' ? text : [{ type: 'text', text }];
  const message = { role: type, content };
  const place = { parentUuid: parent?.uuid ?? null, isSidechain: false, sessionId, cwd: dir };
  return { ...place, type, message, uuid: crypto.randomUUID(), timestamp: new Date().toISOString() };
}

const question = entryOf('user', 'What is a branch?');
const answer = entryOf('assistant', 'A trajectory that shares steps with another one.', question);
const thanks = entryOf('user', 'Thanks.', answer);
const store = new AnabranchSessionStore(client);
await store.append(key, [question, answer]);
await store.append(key, [thanks]);

// Another machine reads the session with the functions of the SDK.
const sessionStore = new AnabranchSessionStore(client);
const show = (messages: SessionMessage[]) => messages.map(({ type, message }) => `${type}: ${textOf(message)}`);
console.log(show(await getSessionMessages(sessionId, { dir, sessionStore })).join('\n'));

// A fork shares the messages up to the answer. The SDK resumes it: query({ options: { resume: fork.sessionId, … } }).
const fork = await sessionStore.fork(key, { at: answer.uuid });
console.log(`fork has ${(await getSessionMessages(fork.sessionId, { dir, sessionStore })).length} messages`);
client.close();

function textOf(message: unknown): string {
  const { content } = message as { content: string | { text: string }[] };
  return typeof content === 'string' ? content : content.map(({ text }) => text).join('');
}
