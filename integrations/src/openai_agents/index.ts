/**
 * Sessions of the OpenAI Agents SDK, in Anabranch.
 *
 *     import { run } from '@openai/agents';
 *     import { connectClient } from 'anabranch/client';
 *     import { AnabranchSession } from 'anabranch/openai-agents';
 *
 *     const session = new AnabranchSession(connectClient(), { sessionId: 'customer-7' });
 *     await run(agent, 'Hello', { session });
 */
export { AnabranchSession, type AnabranchSessionOptions } from './session.ts';
