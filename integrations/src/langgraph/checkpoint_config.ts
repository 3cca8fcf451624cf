import type { RunnableConfig } from '@langchain/core/runnables';

/** What a config names. */
export interface Named {
  readonly threadId: string;
  readonly ns: string;
  readonly checkpointId: string | undefined;
}

/** Returns what a config names. Throws if it names no thread. */
export function named(config: RunnableConfig): Named {
  const { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: id } = config.configurable ?? {};
  if (threadId === undefined || threadId === null) {
    throw new TypeError('config has no thread_id: expected { configurable: { thread_id: … } }');
  }
  return { threadId: String(threadId), ns: ns ? String(ns) : '', checkpointId: id ? String(id) : undefined };
}

export function configOf(threadId: string, ns: string, checkpointId: string): RunnableConfig {
  return { configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: checkpointId } };
}
