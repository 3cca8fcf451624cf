import { randomUUID } from 'node:crypto';
import { emptyCheckpoint, uuid6 } from '@langchain/langgraph-checkpoint';
import type { AnabranchClient } from '../../src/client/index.ts';
import { AnabranchSessionStore } from '../src/claude_agent_sdk/index.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';
import { AnabranchSession } from '../src/openai_agents/index.ts';

/** A thread or session. */
export interface Used {
  /** Adds one item: of LangGraph, a checkpoint with a pending write. */
  write(value: unknown): Promise<unknown>;
  /** Returns the number of items. */
  read(): Promise<number>;
  delete?(): Promise<void>;
}

/** Each integration, as a program uses it with one client. */
export const USES: Readonly<Record<string, (client: AnabranchClient, giveUpAfterMs?: number) => Used>> = {
  'anabranch/langgraph': (client, giveUpAfterMs) => {
    const saver = new AnabranchSaver(client, { giveUpAfterMs });
    const config = { configurable: { thread_id: 'thread', checkpoint_ns: '' } };
    const put = async (parent: typeof config, value: unknown) => {
      const checkpoint = {
        ...emptyCheckpoint(),
        id: uuid6(0),
        channel_values: { value },
        channel_versions: { value: 1 },
      };
      const at = await saver.put(parent, checkpoint, { source: 'loop', step: 0, parents: {} }, { value: 1 });
      await saver.putWrites(at, [['value', value]], 'task');
    };
    return {
      write: async (value) => put(((await saver.getTuple(config))?.config as typeof config) ?? config, value),
      async read() {
        let count = 0;
        for await (const { pendingWrites } of saver.list(config)) count += pendingWrites?.length ?? 0;
        return count;
      },
      delete: () => saver.deleteThread('thread'),
    };
  },
  'anabranch/openai-agents': (client, giveUpAfterMs) => {
    const session = new AnabranchSession(client, { sessionId: 'session', giveUpAfterMs });
    return {
      write: (value) => session.addItems([{ role: 'user', content: value as string }]),
      read: async () => (await session.getItems()).length,
    };
  },
  'anabranch/claude-agent-sdk': (client, giveUpAfterMs) => {
    const store = new AnabranchSessionStore(client, { giveUpAfterMs });
    const key = { projectKey: 'project', sessionId: 'session' };
    return {
      write: (content) => store.append(key, [{ type: 'user', uuid: randomUUID(), message: { role: 'user', content } }]),
      read: async () => (await store.load(key))?.length ?? 0,
      delete: () => store.delete(key),
    };
  },
};
