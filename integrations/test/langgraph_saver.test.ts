import { randomUUID } from 'node:crypto';
import { AIMessage, type BaseMessage, HumanMessage } from '@langchain/core/messages';
import { Annotation, Command, END, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { type Checkpoint, emptyCheckpoint, INTERRUPT, uuid6 } from '@langchain/langgraph-checkpoint';
import { afterEach, describe, expect, it } from 'vitest';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../../test/support/database.ts';
import { AnabranchSaver } from '../src/langgraph/index.ts';
import { serving } from './served.ts';

/** A checkpoint whose channels all have new versions. */
function checkpointOf(values: Record<string, unknown>, version = 1): Checkpoint {
  const versions = Object.fromEntries(Object.keys(values).map((channel) => [channel, version]));
  return { ...emptyCheckpoint(), id: uuid6(0), channel_values: values, channel_versions: versions };
}

/** Tool calls, each with so many characters. */
const callsOf = (count: number, length: number) =>
  Array.from({ length: count }, (_, i) => ({ name: 'write', id: `${i}`, args: { text: 'x'.repeat(length) } }));

const metadata = (step: number, source: 'input' | 'loop' | 'update' | 'fork' = 'loop') => ({
  source,
  step,
  parents: {},
});
const config = (thread_id: string, checkpoint_id?: string) => ({
  configurable: { thread_id, checkpoint_ns: '', ...(checkpoint_id && { checkpoint_id }) },
});

describe.each(ENGINES)('the saver of LangGraph.js on %s', (engine) => {
  const served = serving(engine);
  const clients: AnabranchClient[] = [];
  afterEach(() => {
    for (const client of clients.splice(0)) client.close();
  });

  /** A saver as another process has it, and the names of its calls. */
  function newSaver(): { saver: AnabranchSaver; calls: string[] } {
    const calls: string[] = [];
    const client = connectClient({
      address: served.url,
      interceptors: [
        (next) => (request) => {
          if (request.method.name !== 'GetServerInfo') calls.push(request.method.name);
          return next(request);
        },
      ],
    });
    clients.push(client);
    return { saver: new AnabranchSaver(client), calls };
  }

  /** Puts checkpoints, each behind the one before. Returns their configs. */
  async function chain(saver: AnabranchSaver, thread: string, count: number, text = 'x') {
    const configs = [];
    let parent: Parameters<AnabranchSaver['put']>[0] = config(thread);
    for (let i = 0; i < count; i += 1) {
      const checkpoint = checkpointOf({ step: i, text }, i + 1);
      parent = await saver.put(parent, checkpoint, metadata(i), checkpoint.channel_versions);
      configs.push(parent);
    }
    return configs;
  }

  async function listed(saver: AnabranchSaver, ...args: Parameters<AnabranchSaver['list']>) {
    const tuples = [];
    for await (const tuple of saver.list(...args)) tuples.push(tuple);
    return tuples;
  }

  it('makes one call for put and putWrites, at most two for getTuple and list, however long the thread is', async () => {
    for (const length of [2, 60]) {
      const thread = randomUUID();
      const { saver, calls } = newSaver();
      const configs = await chain(saver, thread, length);
      expect(calls).toEqual(Array(length).fill('AppendBatch'));
      calls.length = 0;
      await saver.putWrites(configs.at(-1)!, [['text', 'a']], 'task');
      expect(calls).toEqual(['AppendBatch']);
      calls.length = 0;
      await saver.getTuple(config(thread));
      expect(calls).toEqual(['ReadStates', 'ReadStates']);

      const other = newSaver();
      const latest = await other.saver.getTuple(config(thread));
      expect(latest?.pendingWrites).toEqual([['task', 'text', 'a']]);
      await other.saver.getTuple(configs[1]!);
      expect(other.calls).toEqual(['ReadStates', 'ReadStates', 'ReadStates']);
      other.calls.length = 0;
      expect(await listed(other.saver, config(thread), { limit: 10 })).toHaveLength(Math.min(10, length));
      expect(other.calls).toEqual(['ReadStates', 'ReadStates']);
      other.calls.length = 0;
      const next = checkpointOf({ step: -1 });
      await other.saver.put(latest!.config, next, metadata(length), next.channel_versions);
      expect(other.calls).toEqual(['AppendBatch']);
    }
  });

  it('reads the history of delta channels in pages, past other branches', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const configs = await chain(saver, thread, 60);
    for (const [i, at] of configs.entries()) await saver.putWrites(at, [['messages', i]], 'task');
    const other = checkpointOf({ messages: ['of another branch'] });
    await saver.put(configs[3]!, other, metadata(4, 'fork'), other.channel_versions);
    const { saver: reader, calls } = newSaver();
    const history = await reader.getDeltaChannelHistory({ config: configs[50]!, channels: ['messages', 'step'] });
    expect(history).toEqual({
      messages: { writes: Array.from({ length: 50 }, (_, i) => ['task', 'messages', i]) },
      step: { writes: [], seed: 49 },
    });
    expect(calls).toEqual(Array(5).fill('ReadStates'));
    expect(await reader.getDeltaChannelHistory({ config: configs[0]!, channels: ['step'] })).toEqual({
      step: { writes: [] },
    });
  });

  it('begins a branch for a checkpoint whose parent is not the last one, also of another process', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const configs = await chain(saver, thread, 3);
    const fork = async (one: AnabranchSaver, parent = configs[1]!) => {
      const checkpoint = checkpointOf({ step: 'fork' }, 9);
      return await one.put(parent, checkpoint, metadata(2, 'fork'), checkpoint.channel_versions);
    };
    const forks = [await fork(saver), await fork(newSaver().saver), await fork(newSaver().saver, configs[2]!)];
    const tuples = await listed(newSaver().saver, config(thread));
    expect(tuples).toHaveLength(6);
    for (const [i, each] of forks.entries()) {
      const tuple = await newSaver().saver.getTuple(each);
      expect(tuple?.parentConfig).toEqual(configs[i === 2 ? 2 : 1]);
      expect(tuple?.checkpoint.channel_values).toEqual({ step: 'fork' });
    }
    const { trajectories } = await served.client.trajectories.listTrajectories({ taskId: `langgraph-js/${thread}` });
    expect(trajectories.map(({ branchPoint }) => branchPoint)).toEqual([1n, 1n, undefined]);
  });

  /** Returns the ids of the checkpoints of a thread, each as often as it is stored. */
  async function storedIds(thread: string): Promise<string[]> {
    const taskId = `langgraph-js/${thread}`;
    const { steps } = await served.client.trajectories.listSteps({ taskId, view: View.FULL, pageSize: 1000 });
    return steps.map(({ step }) => JSON.parse(step!.metadataJson).checkpoint_id).sort();
  }

  it('stores nothing for a put that is repeated, by the same saver or another one', async () => {
    const thread = randomUUID();
    const { saver, calls } = newSaver();
    const puts: { at: Parameters<AnabranchSaver['put']>[0]; checkpoint: Checkpoint }[] = [];
    const messages: BaseMessage[] = [];
    let parent: Parameters<AnabranchSaver['put']>[0] = config(thread);
    for (let i = 0; i < 4; i += 1) {
      messages.push(new AIMessage({ id: `${i}`, content: 'Hi' }));
      const checkpoint = checkpointOf({ messages: [...messages], large: 'x'.repeat(100_000), i });
      puts.push({ at: parent, checkpoint });
      if (i === 2) puts.push({ at: parent, checkpoint: checkpointOf({ messages: [...messages], fork: true }) });
      parent = await saver.put(parent, checkpoint, metadata(i), checkpoint.channel_versions);
    }
    const put = (one: AnabranchSaver, { at, checkpoint }: (typeof puts)[number]) =>
      one.put(at, checkpoint, metadata(Number(checkpoint.channel_values.i ?? 9)), checkpoint.channel_versions);
    await put(saver, puts[3]!);
    const stored = puts.map(({ checkpoint }) => checkpoint.id).sort();
    expect(await storedIds(thread)).toEqual(stored);
    calls.length = 0;
    for (const each of puts) await put(saver, each);
    expect(calls).toEqual(Array(puts.length).fill('ListSteps'));
    const reading = newSaver().saver;
    await reading.getTuple(config(thread));
    const listing = newSaver().saver;
    await listed(listing, config(thread));
    for (const other of [newSaver().saver, reading, listing]) {
      for (const each of puts) await put(other, each);
      expect(await storedIds(thread)).toEqual(stored);
    }
    const backwards = newSaver().saver;
    for (const each of puts.toReversed()) await put(backwards, each);
    expect(await storedIds(thread)).toEqual(stored);
  });

  it('stores one checkpoint for the same put by several savers at once', async () => {
    const thread = randomUUID();
    const [root] = await chain(newSaver().saver, thread, 1);
    const savers = Array.from({ length: 4 }, () => newSaver().saver);
    const children = [checkpointOf({ child: 1 }), checkpointOf({ child: 2 })];
    for (const child of children) {
      const puts = Array.from({ length: 24 }, (_, i) => savers[i % 4]!);
      await Promise.all(puts.map((one) => one.put(root!, child, metadata(1), child.channel_versions)));
    }
    expect(await storedIds(thread)).toEqual(
      [root!.configurable?.checkpoint_id, ...children.map(({ id }) => id)].sort(),
    );
  });

  it('replaces a checkpoint by a put with its id and other values', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const configs = await chain(saver, thread, 3);
    const { id } = (await saver.getTuple(configs[1]!))!.checkpoint;
    for (const [i, one] of [saver, newSaver().saver, saver, newSaver().saver].entries()) {
      const values = { step: i % 2 === 0 ? 'other' : 1 };
      const other = { ...checkpointOf(values), id };
      expect(await one.put(configs[0]!, other, metadata(1), other.channel_versions)).toEqual(configs[1]);
      expect((await newSaver().saver.getTuple(configs[1]!))?.checkpoint.channel_values).toEqual(values);
      const ids = (await listed(newSaver().saver, config(thread))).map((tuple) => tuple.config);
      expect(ids).toEqual([configs[1], configs[2], configs[0]]);
    }
  });

  it('stores large channel values once, however often they are in a checkpoint', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const large = 'y'.repeat(200_000);
    const huge = Array.from({ length: 1500 }, (_, i) => `${i}`.repeat(300));
    let parent: Parameters<AnabranchSaver['put']>[0] = config(thread);
    for (let i = 0; i < 5; i += 1) {
      const checkpoint = checkpointOf({ i, large, huge });
      checkpoint.channel_versions.i = i;
      parent = await saver.put(parent, checkpoint, metadata(i), i === 0 ? checkpoint.channel_versions : { i });
    }
    const tuple = await newSaver().saver.getTuple(config(thread));
    expect(tuple?.checkpoint.channel_values).toEqual({ i: 4, large, huge });
    const { steps } = await served.client.trajectories.listSteps({ taskId: `langgraph-js/${thread}`, view: View.FULL });
    const digests = (name: string) =>
      steps.map(({ step }) => step?.states.find((state) => state.name === name)?.digest);
    expect(new Set(digests('channel/large')).size).toBe(1);
    expect(new Set(digests('channel/huge')).size).toBe(1);
  });

  it('reads states of any size with the calls of small ones', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const values = Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`c${i}`, `${i}`.repeat(200_000)]));
    const checkpoint = checkpointOf({ ...values, huge: 'h'.repeat(300_000) });
    const at = await saver.put(config(thread), checkpoint, metadata(0), checkpoint.channel_versions);
    await saver.putWrites(at, Object.entries(values), 'task');
    const { saver: reader, calls } = newSaver();
    const tuple = await reader.getTuple(config(thread));
    expect(calls).toEqual(['ReadStates', 'ReadStates']);
    expect(tuple?.checkpoint).toEqual(checkpoint);
    expect(tuple?.pendingWrites).toEqual(Object.entries(values).map(([channel, value]) => ['task', channel, value]));
  });

  it('keeps checkpoints and metadata of a megabyte', async () => {
    const thread = randomUUID();
    const values = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`c${i}`, `${i}`.repeat(20_000)]));
    const checkpoint = checkpointOf(values);
    const about = { ...metadata(0), note: 'n'.repeat(1_048_576) };
    await newSaver().saver.put(config(thread), checkpoint, about, checkpoint.channel_versions);
    await newSaver().saver.putWrites(config(thread, checkpoint.id), [['c1', 'w'.repeat(1_500_000)]], 'task');
    const tuple = await newSaver().saver.getTuple(config(thread));
    expect(tuple?.checkpoint).toEqual(checkpoint);
    expect(tuple?.metadata).toEqual(about);
    expect(tuple?.pendingWrites?.[0]?.[2]).toHaveLength(1_500_000);
  });

  it('counts a repeated write of a task once, the last one of a special channel, and orders them by path', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const [at] = await chain(saver, thread, 1);
    await saver.putWrites(
      at!,
      [
        ['a', 1],
        ['b', 2],
      ],
      'task-2',
      '~b',
    );
    await newSaver().saver.putWrites(
      at!,
      [
        ['a', 9],
        ['b', 9],
      ],
      'task-2',
      '~b',
    );
    await saver.putWrites(at!, [[INTERRUPT, 'first']], 'task-1', '~a');
    await saver.putWrites(at!, [[INTERRUPT, 'second']], 'task-1', '~a');
    const { pendingWrites } = (await newSaver().saver.getTuple(at!))!;
    expect(pendingWrites).toEqual([
      ['task-1', INTERRUPT, 'second'],
      ['task-2', 'a', 1],
      ['task-2', 'b', 2],
    ]);
  });

  it('lists by source, step, run and other metadata, before a checkpoint, and across threads', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const configs = await chain(saver, thread, 4);
    const special = checkpointOf({ step: 4 });
    const about = { ...metadata(4, 'update'), run_id: 'run-1', writer: 'me' };
    await saver.put(configs[3]!, special, about, special.channel_versions);
    const ids = async (...args: Parameters<AnabranchSaver['list']>) =>
      (await listed(newSaver().saver, ...args)).map(({ metadata: found }) => found?.step);
    expect(await ids(config(thread))).toEqual([4, 3, 2, 1, 0]);
    expect(await ids(config(thread), { filter: { source: 'loop', step: 2 } })).toEqual([2]);
    expect(await ids(config(thread), { filter: { run_id: 'run-1' } })).toEqual([4]);
    expect(await ids(config(thread), { filter: { writer: 'me' } })).toEqual([4]);
    expect(await ids(config(thread), { filter: { writer: 'you' } })).toEqual([]);
    expect(await ids(config(thread), { before: configs[2]! })).toEqual([1, 0]);
    expect(await ids(config(thread), { before: configs[3]!, limit: 1 })).toEqual([2]);
    expect(await ids(config(thread, special.id))).toEqual([4]);
    expect((await ids({ configurable: {} })).length).toBeGreaterThanOrEqual(5);
    expect(await ids(config('unknown'))).toEqual([]);
  });

  it('lists every checkpoint in pages, also if ids are not in the order of commits', async () => {
    const thread = randomUUID();
    const ids = [2, 9, 1, 8, 3, 7, 5].map((number) => `1ef00000-0000-6000-8000-00000000000${number}`);
    const { saver } = newSaver();
    const put = async (id: string, parent: Parameters<AnabranchSaver['put']>[0]) =>
      await saver.put(parent, { ...checkpointOf({ id }), id }, metadata(0), { id: 1 });
    const root = await put(ids[0]!, config(thread));
    for (const id of ids.slice(1)) await put(id, root);
    const idsOf = (tuples: Awaited<ReturnType<typeof listed>>) => tuples.map(({ checkpoint: { id } }) => id);
    for (const reader of [saver, newSaver().saver]) {
      const all = idsOf(await listed(reader, config(thread)));
      expect(all.toSorted()).toEqual(ids.toSorted());
      for (const [i, id] of all.entries()) {
        const page = await listed(newSaver().saver, config(thread), { before: config(thread, id), limit: 2 });
        expect(idsOf(page)).toEqual(all.slice(i + 1, i + 3));
      }
    }
    const unknown = config(thread, '1ef00000-0000-6000-8000-000000000004');
    expect(idsOf(await listed(saver, config(thread), { before: unknown })).toSorted()).toEqual([
      ids[2],
      ids[0],
      ids[4],
    ]);
    // A checkpoint that was put again is listed once.
    await put(ids[0]!, config(thread));
    expect(idsOf(await listed(saver, config(thread), { before: root })).toSorted()).toEqual(ids.slice(1).toSorted());
  });

  it('loses no checkpoint and no write when several processes use one thread', async () => {
    const thread = randomUUID();
    const [root] = await chain(newSaver().saver, thread, 1);
    const savers = Array.from({ length: 4 }, () => newSaver().saver);
    await Promise.all(
      savers.flatMap((saver, s) =>
        Array.from({ length: 5 }, async (_, i) => {
          const checkpoint = checkpointOf({ place: `${s} ${i}` });
          const at = await saver.put(root!, checkpoint, metadata(1), checkpoint.channel_versions);
          await Promise.all([
            saver.putWrites(root!, [['place', `${s} ${i}`]], `task ${s} ${i}`),
            saver.putWrites(at, [['place', i]], 'task'),
          ]);
        }),
      ),
    );
    const tuples = await listed(newSaver().saver, config(thread));
    expect(tuples).toHaveLength(21);
    const places = tuples
      .map(({ checkpoint }) => checkpoint.channel_values.place)
      .filter((place) => place !== undefined);
    expect(new Set(places).size).toBe(20);
    expect(tuples.at(-1)?.pendingWrites).toHaveLength(20);
    expect(tuples.slice(0, 20).map(({ pendingWrites }) => pendingWrites?.length)).toEqual(Array(20).fill(1));
  });

  it('stores the writes of calls beside one that is too large', async () => {
    const { saver } = newSaver();
    const [at] = await chain(saver, randomUUID(), 1);
    const large = Array.from({ length: 100_000 }, () => ['text', 0] as [string, number]);
    const calls = await Promise.allSettled([
      saver.putWrites(at!, [['text', 1]], 'one'),
      saver.putWrites(at!, [['text', 2]], 'two'),
      saver.putWrites(at!, large, 'large'),
      saver.putWrites(at!, [['text', 3]], 'three'),
    ]);
    expect(calls.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'fulfilled']);
    expect((await saver.getTuple(at!))?.pendingWrites).toHaveLength(3);
  });

  it('continues a thread that was deleted, by this or another process, and keeps namespaces apart', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const [first] = await chain(saver, thread, 2);
    await saver.putWrites(first!, [['text', 'a']], 'task');
    const child = { configurable: { thread_id: thread, checkpoint_ns: 'child:1' } };
    const inner = checkpointOf({ inner: 1 });
    await saver.put(child, inner, metadata(0), inner.channel_versions);
    expect((await saver.getTuple(child))?.checkpoint.channel_values).toEqual({ inner: 1 });
    expect((await saver.getTuple(config(thread)))?.checkpoint.channel_values).toEqual({ step: 1, text: 'x' });
    await newSaver().saver.deleteThread(thread);
    await newSaver().saver.deleteThread(thread);
    expect(await saver.getTuple(config(thread))).toBeUndefined();
    expect(await saver.getTuple(child)).toBeUndefined();
    const orphan = checkpointOf({ step: 'orphan' });
    const at = await saver.put(first!, orphan, metadata(2), orphan.channel_versions);
    await saver.putWrites(at, [['text', 'b']], 'task');
    const tuple = await newSaver().saver.getTuple(config(thread));
    expect(tuple?.checkpoint.channel_values).toEqual({ step: 'orphan' });
    expect(tuple?.pendingWrites).toEqual([['task', 'text', 'b']]);
  });

  it('refuses what it cannot store with a clear error, and stores nothing of it', async () => {
    const thread = randomUUID();
    const { saver } = newSaver();
    const wrong = checkpointOf({ n: 1n });
    const put = saver.put(config(thread), wrong, metadata(0), wrong.channel_versions);
    await expect(put).rejects.toThrow(`checkpoint ${wrong.id} cannot be serialized, so nothing was stored`);
    const [at] = await chain(saver, thread, 1);
    await expect(saver.putWrites(at!, [['n', 1n]], 'task')).rejects.toThrow(
      'a write of task task cannot be serialized',
    );
    await expect(saver.putWrites(config(thread), [['n', 1]], 'task')).rejects.toThrow('config has no checkpoint_id');
    expect((await saver.getTuple(at!))?.pendingWrites).toEqual([]);
    expect(await listed(saver, config(thread))).toHaveLength(1);
    expect(await saver.getTuple(config(thread, 'no uuid'))).toBeUndefined();
    expect(await saver.getTuple(config('unknown'))).toBeUndefined();
  });

  it('takes threads, namespaces, checkpoint ids and channels of any text', async () => {
    const { saver } = newSaver();
    for (const text of ['a\0b', '\ud800', 'ü'.repeat(200), 'x'.repeat(3000)]) {
      const at = { configurable: { thread_id: text, checkpoint_ns: text } };
      const checkpoint = { ...checkpointOf({ [text]: 'z'.repeat(100_000) }), id: text };
      const stored = await saver.put(at, checkpoint, metadata(0), checkpoint.channel_versions);
      await saver.putWrites(stored, [[text, 1]], text);
      const tuple = await newSaver().saver.getTuple(stored);
      expect(tuple?.checkpoint).toEqual(checkpoint);
      expect(tuple?.pendingWrites).toEqual([[text, text, 1]]);
      expect(await listed(saver, at)).toHaveLength(1);
    }
  });

  it('keeps all values in a copy of the first checkpoint', async () => {
    const State = Annotation.Root({ a: Annotation<string>(), b: Annotation<string>() });
    const graph = new StateGraph(State)
      .addNode('node', () => ({ b: 'out' }))
      .addEdge(START, 'node')
      .compile({ checkpointer: newSaver().saver });
    const at = config(randomUUID());
    await graph.invoke({ a: 'in' }, at);
    const history = [];
    for await (const state of graph.getStateHistory(at)) history.push(state);
    const copy = await graph.updateState(history.at(-1)!.config, null, '__copy__');
    expect(await graph.invoke(null, copy)).toEqual({ a: 'in', b: 'out' });
  });

  it('shows a message again if a checkpoint has changed it, and no other', async () => {
    const [thread, { saver }] = [randomUUID(), newSaver()];
    let parent: Parameters<AnabranchSaver['put']>[0] = config(thread);
    for (const [i, content] of ['one', 'one', 'other'].entries()) {
      const messages = [new HumanMessage({ id: 'h', content: 'Hi' }), new AIMessage({ id: 'a', content })];
      const checkpoint = checkpointOf({ messages }, i);
      parent = await saver.put(parent, checkpoint, metadata(i), checkpoint.channel_versions);
    }
    const { steps } = await served.client.trajectories.listSteps({ taskId: `langgraph-js/${thread}`, view: View.FULL });
    const shown = steps.map(({ step }) =>
      [...step!.actions, ...step!.observations].map(({ content }) => content?.json),
    );
    const reply = (content: string) => JSON.stringify({ choices: [{ message: { role: 'assistant', content } }] });
    expect(shown).toEqual([[reply('one')], [], [reply('other')]]);
  });

  it.each([
    [
      'many messages',
      Array.from({ length: 64 }, (_, i) => new HumanMessage({ id: `${i}`, content: '\u2028'.repeat(10_000) })),
    ],
    ['large tool calls', [new AIMessage({ id: 'a', content: '', tool_calls: callsOf(40, 25_000) })]],
    ['many tool calls', [new AIMessage({ id: 'a', content: '', tool_calls: callsOf(3_000, 0) })]],
  ])('stores %s, and shows the last ones of them', async (_, messages) => {
    const [thread, { saver }] = [randomUUID(), newSaver()];
    const first = checkpointOf({ messages: [new HumanMessage({ id: 'first', content: 'Hi' })] });
    const parent = await saver.put(config(thread), first, metadata(0), first.channel_versions);
    const checkpoint = checkpointOf(
      { messages: [...(first.channel_values.messages as BaseMessage[]), ...messages] },
      2,
    );
    const at = await saver.put(parent, checkpoint, metadata(1), checkpoint.channel_versions);
    expect((await saver.getTuple(at))?.checkpoint).toEqual(checkpoint);
    const { steps } = await served.client.trajectories.listSteps({ taskId: `langgraph-js/${thread}`, view: View.FULL });
    const { actions, observations } = steps[1]!.step!;
    expect(actions.length + observations.length).toBeGreaterThan(4);
    expect(actions.length + observations.length).toBeLessThanOrEqual(1024);
  });

  it('runs a graph, which continues after an interrupt in another process and forks from its history', async () => {
    const thread = randomUUID();
    const State = Annotation.Root({
      ...MessagesAnnotation.spec,
      count: Annotation<number>({ reducer: (one, other) => one + other, default: () => 0 }),
    });
    const graphOf = (checkpointer: AnabranchSaver) =>
      new StateGraph(State)
        .addNode('ask', async () => ({ count: 1, messages: [new AIMessage({ id: 'q', content: 'Which one?' })] }))
        .addNode('answer', async () => {
          const answer: string = interrupt('which');
          return { count: 10, messages: [new HumanMessage({ id: answer, content: answer })] };
        })
        .addEdge(START, 'ask')
        .addEdge('ask', 'answer')
        .addEdge('answer', END)
        .compile({ checkpointer });
    const at = config(thread);
    await graphOf(newSaver().saver).invoke({ messages: [new HumanMessage({ id: 'h', content: 'Hi' })] }, at);
    const graph = graphOf(newSaver().saver);
    const waiting = await graph.getState(at);
    expect(waiting.next).toEqual(['answer']);
    const done = await graph.invoke(new Command({ resume: 'left' }), at);
    expect(done.count).toBe(11);
    expect(done.messages.map((message: BaseMessage) => message.content)).toEqual(['Hi', 'Which one?', 'left']);

    const other = graphOf(newSaver().saver);
    const copy = await other.updateState(waiting.config, null, '__copy__');
    await other.invoke(null, copy);
    const forked = await other.invoke(new Command({ resume: 'right' }), at);
    expect(forked.messages.map((message: BaseMessage) => message.content)).toEqual(['Hi', 'Which one?', 'right']);
    const history = [];
    for await (const state of other.getStateHistory(at)) history.push(state);
    expect(history.map(({ values }) => values.count ?? 0)).toEqual([11, 1, 11, 1, 0, 0]);
    const { steps } = await served.client.trajectories.listSteps({ taskId: `langgraph-js/${thread}`, view: View.FULL });
    const shown = steps.flatMap(({ step }) => step?.actions.map(({ content }) => content?.json) ?? []);
    expect(shown).toContain('{"choices":[{"message":{"role":"assistant","content":"Which one?"}}]}');
  });
});
