import { randomUUID } from 'node:crypto';
import os from 'node:os';
import {
  deleteSession,
  foldSessionSummary,
  forkSession,
  getSessionMessages,
  listSessions,
  listSubagents,
  type SessionStoreEntry,
  type SessionSummaryEntry,
} from '@anthropic-ai/claude-agent-sdk';
import type { Interceptor } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { connectClient, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../../test/support/database.ts';
import { AnabranchSessionStore } from '../src/claude_agent_sdk/index.ts';
import { serving } from './served.ts';

const TIME = '2026-11-01T10:00:00.000Z';

/** The entries of a conversation, each the answer to the one before. */
function conversation(sessionId: string, ...texts: string[]): SessionStoreEntry[] {
  const entries: SessionStoreEntry[] = [];
  for (const [i, text] of texts.entries()) {
    const role = i % 2 === 0 ? 'user' : 'assistant';
    const content = role === 'user' ? text : [{ type: 'text', text }];
    const message = role === 'user' ? { role, content } : { id: `msg_${i}`, role, model: 'fake', content };
    const parentUuid = entries.at(-1)?.uuid ?? null;
    const rest = { sessionId, isSidechain: false, cwd: '/work', timestamp: TIME };
    entries.push({ parentUuid, type: role, message, uuid: randomUUID(), ...rest });
  }
  return entries;
}

describe.each(ENGINES)('a session store of the Claude Agent SDK on %s', (engine) => {
  const served = serving(engine);
  const store = () => new AnabranchSessionStore(served.client);
  const newKey = () => ({ projectKey: `project-${randomUUID()}`, sessionId: randomUUID() });

  it('append: entries are loaded in order and deeply equal, also by another process', async () => {
    const [one, key] = [store(), newKey()];
    expect(await one.load(key)).toBeNull();
    const entries: SessionStoreEntry[] = [
      ...conversation(key.sessionId, 'hi', 'hello'),
      {
        type: 'summary',
        summary: 'ünïcode \u{1F600}\u2028 \ud800',
        leafUuid: 'x',
        nested: { b: [1, null, true], a: {} },
      },
      { type: 'user', message: null, uuid: randomUUID() },
      { type: 'assistant', message: { role: 'user', content: 'other role' }, uuid: randomUUID() },
      { type: 'user', message: 'text', uuid: randomUUID() },
    ];
    await one.append(key, entries.slice(0, 1));
    await one.append(key, entries.slice(1));
    expect(await store().load(key)).toEqual(entries);
    expect(JSON.stringify(await store().load(key))).toBe(JSON.stringify(entries));
  });

  it('append: an empty batch has no effect', async () => {
    const [one, key] = [store(), newKey()];
    await one.append(key, []);
    expect(await one.load(key)).toBeNull();
    expect(await one.listSessions(key.projectKey)).toEqual([]);
  });

  it('append: an entry whose uuid is stored is left out, in any process; those without uuid are not compared', async () => {
    const [key, other] = [newKey(), store()];
    const entries = conversation(key.sessionId, 'a', 'b', 'c');
    const title = { type: 'custom-title', customTitle: 'T', sessionId: key.sessionId };
    const one = store();
    await one.append(key, [...entries.slice(0, 2), ...entries.slice(0, 1), title]);
    await one.append(key, [...entries, title]);
    await other.append(key, entries);
    expect(await other.load(key)).toEqual([entries[0], entries[1], title, entries[2], title]);
  });

  it('append: entries are stored again after another process has deleted the session, or written it anew', async () => {
    const [one, other, key] = [store(), store(), newKey()];
    const entries = conversation(key.sessionId, 'a', 'b');
    await one.append(key, entries);
    await other.delete(key);
    await one.append(key, entries);
    expect(await other.load(key)).toEqual(entries);
    await other.delete(key);
    await other.append(key, entries.slice(1));
    await one.append(key, entries);
    expect(await other.load(key)).toEqual(entries.toReversed());
  });

  it('append: calls of one process are stored in their order, those of several processes all', async () => {
    const key = newKey();
    const stores = [store(), store(), store(), store()];
    const entries = stores.map((_, s) =>
      Array.from({ length: 10 }, (_, i) => ({
        type: 'note',
        place: [s, i],
        ...(i % 2 === 0 && { uuid: randomUUID() }),
      })),
    );
    const calls = stores.flatMap((each, s) => entries[s]?.map((entry) => each.append(key, [entry])) ?? []);
    await Promise.all(calls);
    const loaded = (await store().load(key)) ?? [];
    for (const [s, own] of entries.entries()) {
      expect(loaded.filter((entry) => (entry.place as number[])[0] === s)).toEqual(own);
    }
    expect(loaded).toHaveLength(40);
  });

  it('append: entries and batches that are larger than a message are stored', async () => {
    const key = newKey();
    const entries = conversation(key.sessionId, 'x'.repeat(1_300_000), 'y'.repeat(600_000), 'z'.repeat(600_000));
    await store().append(key, entries);
    expect(await store().load(key)).toEqual(entries);
  });

  it('listSessions: returns the sessions of the project with the time of the last write, without subagents', async () => {
    const [one, { projectKey }] = [store(), newKey()];
    const before = Date.now() - 60_000;
    await one.append({ projectKey, sessionId: 's1' }, conversation('s1', 'a'));
    await one.append({ projectKey, sessionId: 's2' }, conversation('s2', 'a'));
    await one.append({ projectKey, sessionId: 's2', subpath: 'subagents/agent-1' }, conversation('s2', 'b'));
    await one.append({ projectKey: `${projectKey}-2`, sessionId: 's3' }, conversation('s3', 'a'));
    const sessions = await one.listSessions(projectKey);
    expect(sessions.map(({ sessionId }) => sessionId).toSorted()).toEqual(['s1', 's2']);
    for (const { mtime } of sessions) {
      expect(Number.isInteger(mtime)).toBe(true);
      expect(mtime).toBeGreaterThan(before);
    }
    expect(await one.listSessions('unknown')).toEqual([]);
  });

  it('listSessionSummaries: are those of the SDK, and only what has changed is read again', async () => {
    const [key, calls] = [newKey(), [] as string[]];
    const interceptor: Interceptor = (next) => (request) => {
      calls.push(request.method.name);
      return next(request);
    };
    const client = connectClient({ address: served.url, interceptors: [interceptor] });
    const one = new AnabranchSessionStore(client);
    const entries = conversation(key.sessionId, 'What is a branch?', 'A trajectory.');
    await one.append(key, entries);
    await one.append({ ...key, subpath: 'subagents/agent-1' }, conversation(key.sessionId, 'b'));
    const fork = await one.fork(key, { title: 'Fork' });
    const expected = async () => {
      const found = [];
      for (const { sessionId, mtime } of await store().listSessions(key.projectKey)) {
        const each = { projectKey: key.projectKey, sessionId };
        const loaded = (await store().load(each)) ?? [];
        found.push({ ...foldSessionSummary(undefined, each, loaded), mtime });
      }
      return found;
    };
    const sorted = (found: readonly SessionSummaryEntry[]) =>
      found.toSorted((a, b) => a.sessionId.localeCompare(b.sessionId));
    expect(sorted(await one.listSessionSummaries(key.projectKey))).toEqual(sorted(await expected()));
    calls.length = 0;
    expect(await one.listSessionSummaries(key.projectKey)).toHaveLength(2);
    expect(calls).toEqual(['ListTrajectories']);
    await store().append(fork, [{ type: 'custom-title', customTitle: 'Later', sessionId: fork.sessionId }]);
    calls.length = 0;
    expect(sorted(await one.listSessionSummaries(key.projectKey))).toEqual(sorted(await expected()));
    expect(calls).toEqual(['ListTrajectories', 'ReadTrajectories']);
    expect(await one.listSessionSummaries('unknown')).toEqual([]);
    client.close();
  });

  it('listSubkeys: returns the subpaths of the session, whose transcripts are apart from the main one', async () => {
    const [one, key] = [store(), newKey()];
    const main = conversation(key.sessionId, 'a');
    const sub = conversation(key.sessionId, 'b');
    await one.append(key, main);
    expect(await one.listSubkeys(key)).toEqual([]);
    await one.append({ ...key, subpath: 'subagents/agent-1' }, sub);
    await one.append({ ...key, subpath: 'subagents/agent-2' }, sub);
    expect((await one.listSubkeys(key)).toSorted()).toEqual(['subagents/agent-1', 'subagents/agent-2']);
    expect(await one.load({ ...key, subpath: 'subagents/agent-1' })).toEqual(sub);
    expect(await one.load(key)).toEqual(main);
  });

  it('delete: removes one subpath, or the session with all of them; the key can be written again', async () => {
    const [one, key] = [store(), newKey()];
    const [first, second] = [
      { ...key, subpath: 'one' },
      { ...key, subpath: 'two' },
    ];
    for (const each of [key, first, second]) await one.append(each, conversation(key.sessionId, 'a'));
    await one.delete(first);
    expect(await one.load(first)).toBeNull();
    expect(await one.listSubkeys(key)).toEqual(['two']);
    await one.delete(key);
    await one.delete(key);
    expect(await one.load(key)).toBeNull();
    expect(await one.load(second)).toBeNull();
    expect(await one.listSessions(key.projectKey)).toEqual([]);
    const again = conversation(key.sessionId, 'again');
    await one.append(key, again);
    expect(await store().load(key)).toEqual(again);
  });

  it('fork: shares the messages up to one as a branch, with new uuids, and stays when the session is deleted', async () => {
    const [one, key] = [store(), newKey()];
    const [a, b, c] = conversation(key.sessionId, 'a', 'b', 'c') as [
      SessionStoreEntry,
      SessionStoreEntry,
      SessionStoreEntry,
    ];
    const progress = { type: 'progress', uuid: randomUUID(), parentUuid: b.uuid, timestamp: TIME };
    const title = { type: 'ai-title', aiTitle: 'Talk', sessionId: key.sessionId };
    await one.append(key, [a, b, progress, { ...c, parentUuid: progress.uuid }, title]);
    const whole = await one.fork(key);
    const part = await one.fork(key, { at: b.uuid, sessionId: 'part', title: 'Half' });
    expect(part).toEqual({ projectKey: key.projectKey, sessionId: 'part' });

    const entries = (await store().load(part)) ?? [];
    expect(entries.map(({ type }) => type)).toEqual(['user', 'assistant', 'custom-title']);
    expect(entries[2]).toMatchObject({ customTitle: 'Half', sessionId: 'part' });
    expect(entries.map(({ uuid }) => uuid)).not.toContain(a.uuid);
    expect(entries[1]).toMatchObject({
      message: b.message,
      parentUuid: entries[0]?.uuid,
      sessionId: 'part',
      forkedFrom: { sessionId: key.sessionId, messageUuid: b.uuid },
    });
    const all = (await one.load(whole)) ?? [];
    expect(all.map(({ type }) => type)).toEqual(['user', 'assistant', 'user', 'custom-title']);
    expect(all[2]).toMatchObject({ parentUuid: all[1]?.uuid });
    expect(all[3]).toMatchObject({ customTitle: 'Talk (fork)' });

    // What a fork shares is known by its new uuids, as what it has added.
    const added = { ...c, uuid: randomUUID(), parentUuid: entries[1]?.uuid, sessionId: 'part' };
    await store().append(part, [...entries, added]);
    expect(await one.load(part)).toEqual([...entries, added]);
    const nested = await one.fork(part, { at: added.uuid });
    expect(await one.load(nested)).toHaveLength(4);
    await one.delete(key);
    expect(await store().load(part)).toEqual([...entries, added]);
    expect(await one.fork(part, { sessionId: 'part' }).catch(reasonOf)).toBe('TRAJECTORY_EXISTS');
    await expect(one.fork(part, { at: 'nowhere' })).rejects.toThrow('no message nowhere');
  });

  it('fork: takes the id of a session that was deleted', async () => {
    const [one, key] = [store(), newKey()];
    await one.append(key, conversation(key.sessionId, 'a', 'b'));
    const fork = await one.fork(key);
    await one.delete(fork);
    expect(await one.fork(key, { sessionId: fork.sessionId, title: 'Again' })).toEqual(fork);
    expect((await one.load(fork))?.map(({ type }) => type)).toEqual(['user', 'assistant', 'custom-title']);
  });

  it('refuses keys and entries that it cannot store, and stores nothing of a refused batch', async () => {
    const [one, key] = [store(), newKey()];
    const entry = { type: 'note' };
    await expect(one.append({ ...key, projectKey: '' }, [entry])).rejects.toThrow('projectKey has 0 bytes');
    await expect(one.append({ ...key, projectKey: 'p'.repeat(240) }, [entry])).rejects.toThrow('expected 1 to 239');
    await expect(one.append({ ...key, subpath: '' }, [entry])).rejects.toThrow('subpath has 0 bytes');
    await expect(one.load({ ...key, sessionId: 's'.repeat(257) })).rejects.toThrow('sessionId has 257 bytes');
    await expect(one.append(key, [entry, { type: 'note', n: 1n }])).rejects.toThrow('the entry: "n" is a bigint');
    expect(await one.load(key)).toBeNull();
  });

  it.each([
    [60, 30_000],
    [5_000, 0],
  ])('stores a message with %i tool calls of %i bytes, and shows the first ones', async (count, length) => {
    const [one, key] = [store(), newKey()];
    const input = { text: 'x'.repeat(length) };
    const content = Array.from({ length: count }, (_, i) => ({ type: 'tool_use', id: `${i}`, name: 'Write', input }));
    const entry = { type: 'assistant', message: { role: 'assistant', content }, uuid: randomUUID() };
    await one.append(key, [entry]);
    expect(await one.load(key)).toEqual([entry]);
    const taskId = `claude-agent-sdk/${key.projectKey}`;
    const { steps } = await served.client.trajectories.listSteps({ taskId, view: View.FULL, pageSize: 10 });
    const { actions } = steps.find(({ step }) => step?.stepNumber === 1n)!.step!;
    expect(actions[1]).toMatchObject({ type: 'tool_call', name: 'Write', callId: '0' });
    expect(actions.length).toBeLessThan(count);
  });

  it('shows messages and tool calls of both sides in the steps', async () => {
    const key = newKey();
    const use = { type: 'tool_use', id: 'toolu_1', name: 'Bash', input: { command: 'ls' } };
    const result = { type: 'tool_result', tool_use_id: 'toolu_1', content: 'no', is_error: true };
    const rest = { sessionId: key.sessionId, timestamp: TIME };
    await store().append(key, [
      { type: 'assistant', message: { role: 'assistant', content: [use] }, uuid: randomUUID(), ...rest },
      { type: 'user', message: { role: 'user', content: [result] }, uuid: randomUUID(), ...rest },
    ]);
    const taskId = `claude-agent-sdk/${key.projectKey}`;
    const { steps } = await served.client.trajectories.listSteps({ taskId, view: View.FULL });
    const shown = steps.map(({ step }) => step).toSorted((one, other) => Number(one!.stepNumber - other!.stepNumber));
    expect(shown[1]?.actions).toMatchObject([
      { type: 'message', name: 'anthropic.messages' },
      { type: 'tool_call', name: 'Bash', callId: 'toolu_1', content: { json: '{"command":"ls"}' } },
    ]);
    expect(shown[2]?.observations[0]).toMatchObject({ type: 'message', callId: 'toolu_1', isError: true });
  });

  describe('with the functions of the SDK', () => {
    const dir = os.tmpdir();

    it('lists sessions, reads messages and subagents, forks and deletes', async () => {
      const sessionStore = store();
      const projectKey = await projectKeyOf(dir);
      const sessionId = randomUUID();
      const entries = conversation(sessionId, 'What is a branch?', 'A trajectory.', 'Thanks.');
      await sessionStore.append({ projectKey, sessionId }, entries);
      const subpath = 'subagents/agent-7';
      const sub = conversation(sessionId, 'look').map((entry) => ({ ...entry, isSidechain: true, agentId: '7' }));
      await sessionStore.append({ projectKey, sessionId, subpath }, sub);

      const [listed] = (await listSessions({ dir, sessionStore })).filter((each) => each.sessionId === sessionId);
      expect(listed).toMatchObject({ firstPrompt: 'What is a branch?' });
      const messages = await getSessionMessages(sessionId, { dir, sessionStore });
      expect(messages.map(({ uuid }) => uuid)).toEqual(entries.map(({ uuid }) => uuid));
      expect(await listSubagents(sessionId, { dir, sessionStore })).toEqual(['7']);

      const copied = await forkSession(sessionId, { dir, sessionStore, upToMessageId: entries[1]?.uuid ?? '' });
      expect(await getSessionMessages(copied.sessionId, { dir, sessionStore })).toHaveLength(2);
      const branch = await sessionStore.fork({ projectKey, sessionId }, { at: entries[1]?.uuid });
      const shared = await getSessionMessages(branch.sessionId, { dir, sessionStore });
      expect(shared.map(({ message }) => message)).toEqual(messages.slice(0, 2).map(({ message }) => message));

      await deleteSession(sessionId, { dir, sessionStore });
      expect(await getSessionMessages(sessionId, { dir, sessionStore })).toEqual([]);
    });

    /** The SDK derives the key of a project from its folder: it is asked which one. */
    async function projectKeyOf(folder: string): Promise<string> {
      let asked = '';
      const load = async () => null;
      const listing = async (projectKey: string) => {
        asked = projectKey;
        return [];
      };
      await listSessions({ dir: folder, sessionStore: { append: async () => undefined, load, listSessions: listing } });
      return asked;
    }
  });
});
