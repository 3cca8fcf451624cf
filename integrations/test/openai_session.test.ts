import { randomUUID } from 'node:crypto';
import { Agent, type AgentInputItem, run, tool, Usage } from '@openai/agents';
import { assistantMessage, functionCall, modelResponse, ScriptedModel } from '@openai/agents/testing';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { outsideSql } from '../../test/store/sql.ts';
import { ENGINES } from '../../test/support/database.ts';
import { AnabranchSession } from '../src/openai_agents/index.ts';
import { serving } from './served.ts';

const said = (text: string): AgentInputItem => ({ role: 'user', content: text });
const reply = (text: string): AgentInputItem => ({
  type: 'message',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text }],
});

describe.each(ENGINES)('a session of the OpenAI Agents SDK on %s', (engine) => {
  const served = serving(engine);
  const session = (sessionId: string = randomUUID()) => new AnabranchSession(served.client, { sessionId });

  it('returns items in order, the last ones with a limit, also in another process', async () => {
    const one = session();
    expect(await one.getItems()).toEqual([]);
    const items = [said('hi'), reply('hello'), said('bye')];
    await one.addItems(items.slice(0, 2));
    await one.addItems(items.slice(2));
    const other = session(await one.getSessionId());
    expect(await other.getItems()).toEqual(items);
    expect(await other.getItems(2)).toEqual(items.slice(1));
    expect(await other.getItems(0)).toEqual([]);
    expect(await other.getItems(9)).toEqual(items);
  });

  it('pops the last item, and continues on a branch before it', async () => {
    const one = session();
    expect(await one.popItem()).toBeUndefined();
    await one.addItems([said('a'), reply('b'), said('c')]);
    expect(await one.popItem()).toEqual(said('c'));
    expect(await one.popItem()).toEqual(reply('b'));
    await one.addItems([reply('d')]);
    expect(await one.getItems()).toEqual([said('a'), reply('d')]);
    const labels = { integration: 'openai-agents', session: await one.getSessionId() };
    const { trajectories } = await served.client.trajectories.listTrajectories({ labels });
    expect(trajectories.map(({ branchPoint, nextStepNumber }) => [branchPoint, nextStepNumber])).toEqual([
      [1n, 3n],
      [2n, 3n],
      [undefined, 4n],
    ]);
    expect(await one.popItem()).toEqual(reply('d'));
    expect(await one.popItem()).toEqual(said('a'));
    expect(await one.popItem()).toBeUndefined();
    await one.addItems([said('e')]);
    expect(await session(labels.session).getItems()).toEqual([said('e')]);
  });

  it('clears all items, also of a session that has none', async () => {
    const one = session();
    await one.clearSession();
    await one.addItems([said('a'), said('b')]);
    await one.clearSession();
    expect(await one.getItems()).toEqual([]);
    expect(await one.popItem()).toBeUndefined();
    await one.addItems([said('c')]);
    expect(await one.getItems()).toEqual([said('c')]);
  });

  it.each(['popItem', 'clearSession'] as const)('%s: works again after the session was deleted', async (remove) => {
    const sessionId = randomUUID();
    for (const text of ['a', 'b']) {
      const one = session(sessionId);
      await one.addItems([said(text), said('removed')]);
      await one[remove]();
      await one.addItems([reply('next')]);
      expect(await session(sessionId).getItems()).toEqual([
        ...(remove === 'popItem' ? [said(text)] : []),
        reply('next'),
      ]);
      const { trajectories } = await served.client.trajectories.listTrajectories({ labels: { session: sessionId } });
      expect(trajectories).toHaveLength(2);
      for (const { id } of trajectories) await served.client.trajectories.deleteTrajectory({ trajectoryId: id });
    }
  });

  it('continues at a copy of its items when its branches are too deep', async () => {
    const one = session();
    const sessionId = await one.getSessionId();
    const items = [said('a'), reply('y'.repeat(1_500_000)), said('b')];
    await one.addItems([...items, said('popped')]);
    const sql = await outsideSql(served.server.database);
    const { trajectories } = await served.client.trajectories.listTrajectories({ labels: { session: sessionId } });
    await sql.rows(`update trajectories set depth = ${LIMITS.branchDepth} where id = '${trajectories[0]?.id}'`);
    await sql.close();
    const fork = await one.fork(2);
    expect(await one.popItem()).toEqual(said('popped'));
    for (const each of [one, session(sessionId)]) {
      expect(await each.getItems()).toEqual(items);
      await each.addItems([said('next'), said('popped')]);
      expect(await each.popItem()).toEqual(said('popped'));
      expect(await each.popItem()).toEqual(said('next'));
    }
    await fork.addItems([said('next')]);
    expect(await fork.getItems()).toEqual([...items.slice(0, 2), said('next')]);
  });

  it('forks at any item, into a session with its own items', async () => {
    const one = session();
    await expect(one.fork()).rejects.toThrow(/not found|does not exist|no trajectory/i);
    await one.addItems([said('a'), reply('b'), said('c')]);
    const [all, first, none] = [await one.fork(), await one.fork(1), await one.fork(0)];
    await first.addItems([reply('x')]);
    expect(await all.getItems()).toEqual([said('a'), reply('b'), said('c')]);
    expect(await first.getItems()).toEqual([said('a'), reply('x')]);
    expect(await none.getItems()).toEqual([]);
    expect(await first.popItem()).toEqual(reply('x'));
    expect(await first.popItem()).toEqual(said('a'));
    expect(await one.getItems()).toHaveLength(3);
    await expect(one.fork(4)).rejects.toThrow('at is 4: the session has 3 items');
    await expect(one.fork(-1)).rejects.toThrow('at is -1');
    const taken = one.fork(1, await first.getSessionId()).catch(reasonOf);
    expect(await taken).toBe('TRAJECTORY_EXISTS');
  });

  it('stores all items that several processes add at once, those of one call beside each other', async () => {
    const sessionId = randomUUID();
    const processes = Array.from({ length: 4 }, () => session(sessionId));
    const calls = processes.flatMap((each, p) =>
      Array.from({ length: 5 }, (_, i) => each.addItems([said(`${p} ${i} a`), said(`${p} ${i} b`)])),
    );
    await Promise.all(calls);
    const texts = (await session(sessionId).getItems()).map((item) => ('content' in item ? String(item.content) : ''));
    expect(texts).toHaveLength(40);
    expect(new Set(texts).size).toBe(40);
    for (let i = 0; i < texts.length; i += 2) expect(texts[i + 1]).toBe(texts[i]?.replace(' a', ' b'));
  });

  it('pops each item once when several processes pop at once', async () => {
    const sessionId = randomUUID();
    await session(sessionId).addItems(Array.from({ length: 6 }, (_, i) => said(`${i}`)));
    const popped = await Promise.all(Array.from({ length: 8 }, () => session(sessionId).popItem()));
    const texts = popped.flatMap((item) => (item !== undefined && 'content' in item ? [item.content] : []));
    expect(texts.toSorted()).toEqual(['0', '1', '2', '3', '4', '5']);
    expect(await session(sessionId).getItems()).toEqual([]);
  });

  it('continues for a process that died between the two writes of a pop', async () => {
    const one = session();
    await one.addItems([said('a'), said('b')]);
    const labels = { session: await one.getSessionId() };
    const { trajectories } = await served.client.trajectories.listTrajectories({ labels });
    const seal = { status: Status.CANCELLED, message: 'pop 1' };
    await served.client.trajectories.sealTrajectory({ trajectoryId: trajectories[0]?.id ?? '', seal });
    expect(await session(labels.session).getItems()).toEqual([said('a')]);
    await one.addItems([said('c')]);
    expect(await one.getItems()).toEqual([said('a'), said('c')]);
  });

  it('stores items that are larger than a message, and returns them', async () => {
    const one = session();
    const items = [said('x'.repeat(700_000)), reply('y'.repeat(1_500_000)), said('z')];
    await one.addItems(items);
    expect(await session(await one.getSessionId()).getItems()).toEqual(items);
  });

  it('stores calls whose names, ids and arguments no action can have', async () => {
    const call = { type: 'function_call', name: 'f', callId: 'c', status: 'completed', arguments: '{}' };
    const items = [
      { ...call, name: 'n'.repeat(300) },
      { ...call, name: 'a\0b' },
      { ...call, name: '\ud800' },
      { ...call, callId: 'a\0b' },
      { ...call, callId: 'c'.repeat(5000) },
      { ...call, arguments: '"\ud800"' },
      { ...call, arguments: '['.repeat(3000) + ']'.repeat(3000) },
      { type: 'function_call_result', name: 'f', callId: 'a\0b', status: 'completed', output: 'x' },
    ] as AgentInputItem[];
    const one = session();
    for (const item of items) await one.addItems([item]);
    expect(await one.getItems()).toEqual(items);
  });

  it('refuses what it cannot store, and stores nothing of it', async () => {
    const one = session();
    const wrong = (value: unknown) => one.addItems([said('a'), { role: 'user', content: value } as AgentInputItem]);
    await expect(wrong([{ value: Number.NaN }])).rejects.toThrow('the item: "value" is NaN, which JSON cannot hold');
    await expect(wrong(new Uint8Array(3))).rejects.toThrow('"content" is bytes');
    await expect(wrong(Buffer.from([1]))).rejects.toThrow('"content" is bytes');
    await expect(wrong([new Date(0)])).rejects.toThrow('"0" is an object with toJSON(), which JSON cannot hold');
    await expect(wrong(() => 1)).rejects.toThrow('"content" is a function');
    const loop: unknown[] = [];
    loop.push(loop);
    await expect(wrong(loop)).rejects.toThrow(/circular/);
    expect(await one.getItems()).toEqual([]);
    expect(() => session('')).toThrow('sessionId has 0 bytes: expected 1 to 240');
    expect(() => session('s'.repeat(241))).toThrow('sessionId has 241 bytes');
    expect(() => session('a\0')).toThrow('U+0000');
    await expect(one.getItems(1.5)).rejects.toThrow('limit is 1.5');
  });

  it('runs an agent, whose tool calls and replies are actions of the steps', async () => {
    const sum = tool({
      name: 'sum',
      description: 'Adds two numbers.',
      parameters: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => String(a + b),
    });
    const model = new ScriptedModel([
      modelResponse({ usage: new Usage(), output: [functionCall('sum', { a: 2, b: 3 }, { callId: 'call_1' })] }),
      modelResponse({ usage: new Usage(), output: [assistantMessage('It is 5.')] }),
      modelResponse({ usage: new Usage(), output: [assistantMessage('You are welcome.')] }),
    ]);
    const agent = new Agent({ name: 'adder', model, tools: [sum] });
    const one = session();
    expect((await run(agent, 'What is 2 + 3?', { session: one })).finalOutput).toBe('It is 5.');
    const again = session(await one.getSessionId());
    expect((await run(agent, 'Thanks', { session: again })).finalOutput).toBe('You are welcome.');
    expect(model.lastCall?.request.input).toHaveLength(5);
    expect(await again.getItems()).toHaveLength(6);

    const labels = { session: await one.getSessionId() };
    const { trajectories } = await served.client.trajectories.listTrajectories({ labels });
    const trajectoryId = trajectories[0]?.id ?? '';
    const { steps } = await served.client.trajectories.listSteps({ trajectoryId, view: View.FULL });
    const call = steps[2]?.step?.actions[1];
    expect(call).toMatchObject({
      type: 'tool_call',
      name: 'sum',
      callId: 'call_1',
      content: { json: '{"a":2,"b":3}' },
    });
    expect(steps[3]?.step?.observations[0]).toMatchObject({ type: 'message', callId: 'call_1' });
    expect(steps[4]?.step?.actions[0]?.name).toBe('openai.responses');
  });
});
