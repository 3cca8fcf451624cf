import { randomUUID } from 'node:crypto';
import type { SessionKey, SessionStore, SessionStoreEntry, SessionSummaryEntry } from '@anthropic-ai/claude-agent-sdk';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import { type Step, type Trajectory, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/connection.ts';
import { reasonOf } from '../../../src/client/errors.ts';
import { type PatienceOptions, PatientClient } from '../patient_client.ts';
import { batchesOf, type NewStep } from '../step_batches.ts';
import { entryOf, stepOf, stepOfFork, uuidOf } from './entry.ts';
import { entriesAfterFork, forkedEntries, forkedUuid, isShared, type NumberedEntry } from './fork.ts';
import { checkKey, checkProject, idOf, labelsOf, nameOf, taskOf } from './session_key.ts';

/** Another process has appended or created since. */
const OVERTAKEN = ['STEP_CONFLICT', 'STEP_GAP', 'TRAJECTORY_EXISTS'];
/** Transcripts whose uuids are kept in memory. */
const REMEMBERED = 256;
/** Most trajectories that a call reads. */
const READ_AT_ONCE = 1000;

/** What this process knows of a stored transcript. */
interface Known {
  readonly uid: string;
  /** The step after the last one that was read or written. */
  end: bigint;
  readonly uuids: Set<string>;
}

/** Options of AnabranchSessionStore.fork(). */
export interface ForkOptions {
  /** Uuid of the last message to share. Default: the last message. */
  readonly at?: string | undefined;
  /** Id of the new session. Default: a new UUID. */
  readonly sessionId?: string | undefined;
  /** Title of the new session. Default: that of the old one, followed by ` (fork)`, if there is one. */
  readonly title?: string | undefined;
}

/**
 * A session store of the Claude Agent SDK. A transcript is a trajectory, and its entry k is step k; step 0 is empty. A
 * call returns when its entries are durable. Any number of processes can append to a session. Python's
 * `anabranch.claude_agent_sdk` reads and writes the same sessions.
 */
export class AnabranchSessionStore implements SessionStore {
  readonly #client: PatientClient;
  readonly #known = new Map<string, Known>();
  /** Summaries of the project that was listed last, by the versions of sessions. */
  #summaries: ReadonlyMap<string, SessionSummaryEntry> = new Map();
  /** The last call of each transcript that is appended to: calls of one process are stored in order. */
  readonly #turns = new Map<string, Promise<void>>();

  /** Sends nothing. */
  constructor(client: AnabranchClient, options: PatienceOptions = {}) {
    this.#client = new PatientClient(client, options);
  }

  /**
   * Adds entries at the end, without those whose uuid the transcript has. Each message of at most 1,000 entries and
   * 896 KiB is stored whole.
   */
  async append(key: SessionKey, entries: SessionStoreEntry[]): Promise<void> {
    checkKey(key);
    const call = randomUUID();
    const steps = entries.map((entry) => ({ uuid: uuidOf(entry), step: stepOf(entry, call) }));
    if (steps.length > 0) await this.#inTurn(idOf(key), () => this.#append(key, steps));
  }

  /** Returns all entries in order; null if the transcript was never written. */
  async load(key: SessionKey): Promise<SessionStoreEntry[] | null> {
    checkKey(key);
    const id = idOf(key);
    if ((await this.#client.trajectory(id, View.BASIC)) === undefined) return null;
    return (await this.#entries(id)).map(({ entry }) => entry);
  }

  /** Lists the sessions of a project, with the time of their last write in milliseconds. */
  async listSessions(projectKey: string): Promise<Array<{ sessionId: string; mtime: number }>> {
    checkProject(projectKey);
    return (await this.#sessions(projectKey)).map((each) => ({ sessionId: sessionOf(each), mtime: mtimeOf(each) }));
  }

  /**
   * Returns what the SDK shows of the sessions of a project, without subagents. Reads the sessions that have changed
   * since the last call.
   */
  async listSessionSummaries(projectKey: string): Promise<SessionSummaryEntry[]> {
    checkProject(projectKey);
    const { foldSessionSummary } = await import('@anthropic-ai/claude-agent-sdk');
    const found = await this.#sessions(projectKey);
    const summaries = new Map<string, SessionSummaryEntry>();
    const changed: string[] = [];
    for (const each of found) {
      const known = this.#summaries.get(versionOf(each));
      if (known === undefined) changed.push(each.id);
      else summaries.set(versionOf(each), { ...known, mtime: mtimeOf(each) });
    }
    for await (const { trajectory, entries } of this.#transcripts(changed)) {
      const summary = foldSessionSummary(undefined, { projectKey, sessionId: sessionOf(trajectory) }, entries);
      summaries.set(versionOf(trajectory), { ...summary, mtime: mtimeOf(trajectory) });
    }
    // Those of other projects are forgotten.
    this.#summaries = summaries;
    return [...summaries.values()];
  }

  /** Lists the subpaths of a session that have a transcript. */
  async listSubkeys({ projectKey, sessionId }: { projectKey: string; sessionId: string }): Promise<string[]> {
    checkKey({ projectKey, sessionId });
    const subpaths: string[] = [];
    for await (const { labels } of this.#list(projectKey, labelsOf({ sessionId }))) {
      if (labels.subpath !== undefined) subpaths.push(labels.subpath);
    }
    return subpaths;
  }

  /**
   * Deletes a transcript; without a subpath, all of the session. Forks keep the steps that they share. No effect if
   * there is none. Needs the role WRITE.
   */
  async delete(key: SessionKey): Promise<void> {
    checkKey(key);
    const { projectKey, sessionId, subpath } = key;
    const subpaths = subpath === undefined ? await this.listSubkeys({ projectKey, sessionId }) : [];
    // The main transcript is deleted last, so that an interrupted call can be repeated.
    for (const each of [...subpaths.map((subpath) => ({ projectKey, sessionId, subpath })), key]) {
      const trajectoryId = idOf(each);
      await this.#client.delete(trajectoryId);
      this.#known.delete(trajectoryId);
    }
  }

  /**
   * Creates a session that shares the messages of another one up to a message. Nothing is copied: it is a branch. Its
   * entries have new uuids, as those that the SDK's forkSession() writes. Returns the key of the new session. Throws
   * RangeError if there is no such message, and TRAJECTORY_EXISTS if the new session exists.
   */
  async fork(key: SessionKey, { at, sessionId = randomUUID(), title }: ForkOptions = {}): Promise<SessionKey> {
    const forkedKey = { projectKey: key.projectKey, sessionId };
    checkKey(key);
    checkKey(forkedKey);
    const entries = await this.#entries(idOf(key));
    const last = entries.findLast(({ entry }) => isShared(entry) && (at === undefined || entry.uuid === at));
    if (last === undefined) throw new RangeError(at === undefined ? 'the session has no message' : `no message ${at}`);
    const fork = { sessionId, from: key.sessionId, timestamp: new Date().toISOString() };
    const call = randomUUID();
    const added = entriesAfterFork(entries, fork, title);
    const steps = [stepOfFork(fork, call), ...added.map((entry) => stepOf(entry, call))];
    const [batch = [], ...others] = await batchesOf(this.#client, steps);
    if (others.length > 0) throw new RangeError('the content replacements are too large for a fork');
    const branch = { trajectoryId: idOf(key), stepNumber: last.stepNumber, ...this.#described(forkedKey) };
    const branchId = idOf(forkedKey);
    await this.#client.appendAgain({
      trajectoryId: branchId,
      create: { branch: { ...branch, branchId, requestId: randomUUID() } },
      steps: numbered(batch, last.stepNumber + 1n),
    });
    return forkedKey;
  }

  #described(key: SessionKey): { name: string; labels: Record<string, string> } {
    return { name: nameOf(key), labels: labelsOf(key) };
  }

  async #inTurn(id: string, work: () => Promise<void>): Promise<void> {
    const turn = (this.#turns.get(id) ?? Promise.resolve()).catch(() => undefined).then(work);
    this.#turns.set(id, turn);
    try {
      await turn;
    } finally {
      if (this.#turns.get(id) === turn) this.#turns.delete(id);
    }
  }

  async #append(key: SessionKey, steps: readonly { uuid: string | undefined; step: NewStep }[]): Promise<void> {
    const id = idOf(key);
    const given = new Set<string>();
    let waiting = steps.filter(({ uuid }) => {
      const isRepeated = uuid !== undefined && given.has(uuid);
      if (uuid !== undefined) given.add(uuid);
      return !isRepeated;
    });
    await this.#forgetDeleted(id, given);
    for (;;) {
      const known = await this.#caughtUp(id);
      waiting = waiting.filter(({ uuid }) => uuid === undefined || known?.uuids.has(uuid) !== true);
      const [batch] = await batchesOf(
        this.#client,
        waiting.map(({ step }) => step),
      );
      if (batch === undefined) return;
      if (!(await this.#stored(key, known, batch))) continue;
      const written = waiting.slice(0, batch.length);
      waiting = waiting.slice(batch.length);
      for (const { uuid } of written) if (uuid !== undefined) this.#known.get(id)?.uuids.add(uuid);
    }
  }

  /** Forgets a transcript that has one of these uuids, if it was deleted: its entries are not stored any more. */
  async #forgetDeleted(id: string, uuids: ReadonlySet<string>): Promise<void> {
    const known = this.#known.get(id);
    if (known === undefined || ![...uuids].some((uuid) => known.uuids.has(uuid))) return;
    const stored = await this.#client.trajectory(id, View.BASIC);
    if (stored?.uid !== known.uid) this.#known.delete(id);
  }

  /** Appends a batch at the end that this process knows. Returns false if the end is another one. */
  async #stored(key: SessionKey, known: Known | undefined, batch: readonly NewStep[]): Promise<boolean> {
    const trajectoryId = idOf(key);
    const found = known === undefined ? { create: this.#creation(key) } : { uid: known.uid };
    try {
      const steps = numbered(batch, known?.end ?? 1n);
      const { uid, nextStepNumber: end } = await this.#client.appendAgain({ trajectoryId, steps, ...found });
      this.#remember(trajectoryId, { uid, end, uuids: known?.uuids ?? new Set() });
      return true;
    } catch (error) {
      const reason = reasonOf(error) ?? '';
      const deleted = known !== undefined && reason === 'TRAJECTORY_NOT_FOUND';
      if (deleted) this.#known.delete(trajectoryId);
      else if (!OVERTAKEN.includes(reason)) throw error;
      else if (known !== undefined) await this.#readOn(trajectoryId, known);
      // The id of a deleted trajectory whose steps a fork needs cannot be created again.
      else if ((await this.#caughtUp(trajectoryId)) === undefined) throw error;
      return false;
    }
  }

  #creation(key: SessionKey) {
    const { projectKey } = key;
    const root = { stepNumber: 0n };
    const identity = { trajectoryId: idOf(key), requestId: randomUUID(), taskId: taskOf(projectKey) };
    return { trajectory: { ...identity, ...this.#described(key), root } };
  }

  /** Returns what is known of a transcript. The first call reads its uuids. Undefined if there is no transcript. */
  async #caughtUp(id: string): Promise<Known | undefined> {
    const known = this.#known.get(id);
    if (known !== undefined) return known;
    const trajectory = await this.#client.trajectory(id, View.BASIC);
    if (trajectory === undefined) return undefined;
    const fresh = { uid: trajectory.uid, end: 0n, uuids: new Set<string>() };
    await this.#readOn(id, fresh);
    this.#remember(id, fresh);
    return fresh;
  }

  /** Reads the uuids of the steps from the known end on. */
  async #readOn(id: string, known: Known): Promise<void> {
    let owner: string | undefined;
    for await (const { trajectoryId, step } of this.#client.read({
      trajectoryId: id,
      from: known.end,
      view: View.BASIC,
    })) {
      if (owner !== undefined && owner !== trajectoryId) {
        // A fork gives new uuids to what it shares.
        const renamed = [...known.uuids].map((uuid) => forkedUuid(uuid, trajectoryId));
        known.uuids.clear();
        for (const uuid of renamed) known.uuids.add(uuid);
      }
      owner = trajectoryId;
      if (step.labels.uuid !== undefined) known.uuids.add(step.labels.uuid);
      known.end = step.stepNumber + 1n;
    }
  }

  #remember(id: string, known: Known): void {
    this.#known.delete(id);
    this.#known.set(id, known);
    const [oldest] = this.#known.keys();
    if (this.#known.size > REMEMBERED && oldest !== undefined) this.#known.delete(oldest);
  }

  /** Returns the entries of a transcript in order, with the numbers of their steps. */
  async #entries(id: string): Promise<NumberedEntry[]> {
    let entries: NumberedEntry[] = [];
    for await (const { trajectoryId, step } of this.#client.read({ trajectoryId: id, from: 0n })) {
      entries = await this.#withStep(entries, trajectoryId, step);
    }
    return entries;
  }

  /** Returns the entries that were read before, and that of the next step. */
  async #withStep(entries: NumberedEntry[], ownerId: string, step: Step): Promise<NumberedEntry[]> {
    const found = await entryOf(this.#client, step);
    if (found === undefined) return entries;
    if ('fork' in found) return forkedEntries(entries, found.fork, ownerId);
    entries.push({ entry: found.entry, stepNumber: step.stepNumber });
    return entries;
  }

  /** Reads transcripts with all of their entries, in any order. */
  async *#transcripts(ids: readonly string[]) {
    for (let start = 0; start < ids.length; start += READ_AT_ONCE) {
      let entries: NumberedEntry[] = [];
      const parts = this.#client.readTrajectories(ids.slice(start, start + READ_AT_ONCE));
      for await (const { trajectory, steps, ownerId, done, deleted, error } of parts) {
        for (const step of steps) entries = await this.#withStep(entries, ownerId, step);
        if (!done) continue;
        if (!deleted && error === undefined) yield { trajectory, entries: entries.map(({ entry }) => entry) };
        entries = [];
      }
    }
  }

  /** Returns the sessions of a project, without subagents. */
  async #sessions(projectKey: string): Promise<Trajectory[]> {
    const sessions = [];
    for await (const each of this.#list(projectKey, labelsOf())) {
      if (each.labels.subpath === undefined) sessions.push(each);
    }
    return sessions;
  }

  #list(projectKey: string, labels: Record<string, string>): AsyncGenerator<Trajectory> {
    return this.#client.list({ taskId: taskOf(projectKey), labels });
  }
}

function sessionOf({ labels }: Trajectory): string {
  return labels.session ?? '';
}

/** Returns when a trajectory was written, in milliseconds. */
function mtimeOf({ updateTime }: Trajectory): number {
  return updateTime === undefined ? 0 : Math.floor(timestampMs(updateTime));
}

/** Returns a name of the entries of a trajectory: it changes with each one that is added. */
function versionOf({ uid, nextStepNumber }: Trajectory): string {
  return `${uid} ${nextStepNumber}`;
}

function numbered(steps: readonly NewStep[], first: bigint): NewStep[] {
  return steps.map((step, i) => ({ ...step, stepNumber: first + BigInt(i) }));
}
