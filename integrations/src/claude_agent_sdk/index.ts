/**
 * A session store for the Claude Agent SDK, in Anabranch.
 *
 *     import { query } from '@anthropic-ai/claude-agent-sdk';
 *     import { AnabranchSessionStore } from 'anabranch/claude-agent-sdk';
 *     import { connectClient } from 'anabranch/client';
 *
 *     const sessionStore = new AnabranchSessionStore(connectClient());
 *     for await (const message of query({ prompt: 'Hello', options: { sessionStore } })) console.log(message);
 */
export { AnabranchSessionStore, type ForkOptions } from './session_store.ts';
