import { randomUUID } from 'node:crypto';
import path from 'node:path';
import type { SessionStoreEntry } from '@anthropic-ai/claude-agent-sdk';
import { emptyCheckpoint } from '@langchain/langgraph-checkpoint';
import type { AgentInputItem } from '@openai/agents';
import { beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { run } from '../../test/languages/run.ts';
import { AnabranchSessionStore } from '../src/claude_agent_sdk/index.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';
import { AnabranchSession } from '../src/openai_agents/index.ts';
import { serving } from './served.ts';

const PYTHON = path.resolve(import.meta.dirname, '../../clients/python');

describe('sessions of Python and TypeScript', () => {
  const served = serving('sqlite');
  let python = '';
  beforeAll(async () => {
    const venv = await run('./venv', ['python-sdk', 'requirements-test.txt'], { cwd: PYTHON, minutes: 10 });
    python = path.join(venv.trim(), 'bin/python');
  });

  /** Runs a coroutine in Python, which has the value `given`. Returns its result. */
  async function inPython<T>(given: unknown, ...lines: string[]): Promise<T> {
    const program = [
      'import asyncio, json, sys',
      'given = json.loads(sys.stdin.read())',
      'async def main():',
      ...lines.map((line) => `    ${line}`),
      'print(json.dumps(asyncio.run(main())))',
    ].join('\n');
    const env = { ANABRANCH_ADDRESS: served.url.replace('http://', ''), PYTHONPATH: path.join(PYTHON, 'src') };
    const stdin = JSON.stringify(given);
    return JSON.parse(await run(python, ['-c', program], { env, stdin, minutes: 2 })) as T;
  }

  it('of the OpenAI Agents SDK are one session, whichever language adds, pops and forks', async () => {
    const sessionId = randomUUID();
    const session = new AnabranchSession(served.client, { sessionId });
    const items: AgentInputItem[] = [
      { role: 'user', content: 'hällo \u{1F600}' },
      { type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'hi' }] },
    ];
    await session.addItems(items);
    const others = [
      { type: 'function_call', call_id: 'call_1', name: 'sum', arguments: '{"a":1}' },
      { type: 'function_call_output', call_id: 'call_1', output: '1' },
      { role: 'user', content: 'x'.repeat(1_200_000) },
    ];
    const read = await inPython<unknown>(
      { sessionId, others },
      'from anabranch.openai_agents import AnabranchSession',
      'session = AnabranchSession(given["sessionId"])',
      'before = await session.get_items()',
      'await session.add_items(given["others"])',
      'popped = await session.pop_item()',
      'await session.add_items([popped])',
      'fork = await session.fork(1, session_id=given["sessionId"] + "-python")',
      'return before',
    );
    expect(read).toEqual(items);
    expect(await session.getItems()).toEqual([...items, ...others]);
    const forked = new AnabranchSession(served.client, { sessionId: `${sessionId}-python` });
    expect(await forked.getItems()).toEqual(items.slice(0, 1));
    expect(await session.popItem()).toEqual(others[2]);
    await session.fork(3, `${sessionId}-typescript`);
    const [shared, rest] = await inPython<[unknown, unknown]>(
      { sessionId },
      'from anabranch.openai_agents import AnabranchSession',
      'fork = AnabranchSession(given["sessionId"] + "-typescript")',
      'return await fork.get_items(), await AnabranchSession(given["sessionId"]).get_items()',
    );
    expect(shared).toEqual([...items, others[0]]);
    expect(rest).toEqual([...items, ...others.slice(0, 2)]);
  });

  it('of the Claude Agent SDK are one transcript, whichever language appends and forks', async () => {
    const key = { projectKey: randomUUID(), sessionId: randomUUID() };
    const store = new AnabranchSessionStore(served.client);
    const entry = (type: string, text: string, parentUuid: string | null): SessionStoreEntry => ({
      parentUuid,
      type,
      message: { role: type, content: text },
      uuid: randomUUID(),
      sessionId: key.sessionId,
      timestamp: '2026-11-01T10:00:00.000Z',
      isSidechain: false,
    });
    const a = entry('user', 'a', null);
    const b = entry('assistant', 'b', a.uuid!);
    const c = entry('user', 'c', b.uuid!);
    await store.append(key, [a, b]);
    const read = await inPython<{ before: unknown; fork: { session_id: string }; forked: SessionStoreEntry[] }>(
      { key, entries: [a, b, c], at: b.uuid },
      'from anabranch.claude_agent_sdk import AnabranchSessionStore',
      'store = AnabranchSessionStore()',
      'key = {"project_key": given["key"]["projectKey"], "session_id": given["key"]["sessionId"]}',
      'before = await store.load(key)',
      'await store.append(key, given["entries"])',
      'fork = await store.fork(key, at=given["at"])',
      'return {"before": before, "fork": fork, "forked": await store.load(fork)}',
    );
    expect(read.before).toEqual([a, b]);
    expect(await store.load(key)).toEqual([a, b, c]);
    const fork = { projectKey: key.projectKey, sessionId: read.fork.session_id };
    expect(await store.load(fork)).toEqual(read.forked);
    const again = await store.fork(fork);
    const other = await inPython<unknown>(
      { key: again },
      'from anabranch.claude_agent_sdk import AnabranchSessionStore',
      'key = {"project_key": given["key"]["projectKey"], "session_id": given["key"]["sessionId"]}',
      'return await AnabranchSessionStore().load(key)',
    );
    expect(other).toEqual(await store.load(again));
  });

  it('of LangGraph are apart: a thread of one language is none of the other, also if both have one name', async () => {
    const namespace = randomUUID();
    const client = connectClient({ address: served.url, namespace });
    const saver = new AnabranchSaver(client);
    const config = { configurable: { thread_id: 'both', checkpoint_ns: '' } };
    const checkpoint = { ...emptyCheckpoint(), channel_values: { language: 'TypeScript' }, channel_versions: {} };
    const at = await saver.put(config, checkpoint, { source: 'loop', step: 0, parents: {} }, { language: 1 });
    await saver.putWrites(at, [['language', 'TypeScript']], 'task');
    const values = await inPython<unknown>(
      { namespace },
      'from anabranch.langgraph import AnabranchSaver',
      'from langgraph.checkpoint.base import empty_checkpoint',
      'import anabranch as ab',
      'saver = AnabranchSaver(ab.connect(namespace=given["namespace"], spool=False))',
      'for thread in ("both", "python"):',
      '    checkpoint = {**empty_checkpoint(), "channel_values": {"language": "Python"}}',
      '    at = saver.put({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, checkpoint, {"step": 0}, {})',
      '    saver.put_writes(at, [("language", "Python")], "task")',
      'return [(each.checkpoint["channel_values"], each.pending_writes) for each in saver.list(None)]',
    );
    expect(values).toEqual(Array(2).fill([{ language: 'Python' }, [['task', 'language', 'Python']]]));
    const own = [];
    for await (const each of saver.list({ configurable: {} })) own.push(each);
    expect(own.map(({ checkpoint, pendingWrites }) => [checkpoint.channel_values, pendingWrites])).toEqual([
      [{ language: 'TypeScript' }, [['task', 'language', 'TypeScript']]],
    ]);
    client.close();
  });
});
