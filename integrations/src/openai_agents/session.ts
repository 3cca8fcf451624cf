import { randomUUID } from 'node:crypto';
import type { AgentInputItem, Session } from '@openai/agents';
import { v5 } from 'uuid';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/connection.ts';
import { reasonOf } from '../../../src/client/errors.ts';
import { checkName } from '../json_text.ts';
import { orUndefined, type PatienceOptions, PatientClient } from '../patient_client.ts';
import { batchesOf, fewestBatchesOf, type NewStep } from '../step_batches.ts';
import { itemOf, stepOf } from './item.ts';

const SESSIONS = '552eb3b9-ff64-4e22-b720-83f3b617a134';
const INTEGRATION = 'openai-agents';
/** Another process has appended, created, popped or cleared since. */
const OVERTAKEN = ['STEP_CONFLICT', 'STEP_GAP', 'TRAJECTORY_EXISTS', 'TRAJECTORY_SEALED'];

/** Options of an AnabranchSession. */
export interface AnabranchSessionOptions extends PatienceOptions {
  /** Id of the session, 1 to 240 bytes. Default: a new UUID. */
  readonly sessionId?: string | undefined;
}

/** The trajectory that holds the items of a session. Item k is step k; step 0 is empty. */
interface Tip {
  readonly id: string;
  readonly uid: string;
  /** The step after the last item. */
  readonly end: bigint;
  /** Whether a pop or a clear has sealed it, and its branch has not been found. */
  readonly sealed: boolean;
}

/**
 * A session of the OpenAI Agents SDK. Its items are steps of a trajectory, in order. Removing items branches before
 * them, so that they stay readable. A call returns when its items are durable. Any number of processes can use one
 * session. Python's `anabranch.openai_agents` reads and writes the same sessions.
 *
 *     const session = new AnabranchSession(connectClient(), { sessionId: 'customer-7' });
 *     await run(agent, 'Hello', { session });
 *     const other = await session.fork(2); // shares the first two items
 */
export class AnabranchSession implements Session {
  readonly #client: PatientClient;
  readonly #options: AnabranchSessionOptions;
  readonly #sessionId: string;
  /** Where the session ended when it was last written. Undefined: unknown. */
  #tip: Tip | undefined;

  /** Sends nothing. Throws if the id is invalid. */
  constructor(client: AnabranchClient, options: AnabranchSessionOptions = {}) {
    const { sessionId = randomUUID() } = options;
    checkName(sessionId, 'sessionId', 240);
    this.#client = new PatientClient(client, options);
    this.#options = options;
    this.#sessionId = sessionId;
  }

  async getSessionId(): Promise<string> {
    return this.#sessionId;
  }

  /** Returns the last `limit` items in order. Default: all. */
  async getItems(limit?: number): Promise<AgentInputItem[]> {
    if (limit !== undefined && !Number.isInteger(limit)) throw new RangeError(`limit is ${limit}: expected an integer`);
    const tip = limit === 0 ? undefined : await this.#find();
    if (tip === undefined || tip.end <= 1n) return [];
    const first = limit === undefined || limit < 0 ? 1n : tip.end - BigInt(limit);
    return await this.#read(tip.id, first > 1n ? first : 1n, tip.end);
  }

  /**
   * Adds items at the end: all or none if they are at most 1,000 and those of less than 64 KiB have together at most
   * 896 KiB. If the server stays away, they may have been stored.
   */
  async addItems(items: AgentInputItem[]): Promise<void> {
    const call = randomUUID();
    // The numbers are set when the end is known.
    const steps = items.map((item) => stepOf(item, 0n, call));
    for (const batch of await fewestBatchesOf(this.#client, steps)) {
      await this.#retried(async () => {
        const tip = this.#tip ?? (await this.#writable());
        const first = tip?.end ?? 1n;
        const numbered = batch.map((step, i) => ({ ...step, stepNumber: first + BigInt(i) }));
        const id = tip?.id ?? this.#firstId();
        const found = tip === undefined ? { create: this.#creation() } : { uid: tip.uid };
        const { uid, nextStepNumber } = await this.#client.appendAgain({ trajectoryId: id, steps: numbered, ...found });
        this.#tip = { id, uid, end: nextStepNumber, sealed: false };
      });
    }
  }

  /** Removes the last item and returns it. Undefined if there is none. Of several calls at once, each gets another. */
  async popItem(): Promise<AgentInputItem | undefined> {
    for (;;) {
      const removed = await this.#branchBack('pop');
      if (removed === undefined) return undefined;
      const [item] = await this.#read(removed.id, removed.end - 1n, removed.end);
      // A step of someone else is no item.
      if (item !== undefined) return item;
    }
  }

  /** Removes all items. */
  async clearSession(): Promise<void> {
    await this.#branchBack('clear');
  }

  /**
   * Creates a session that shares the first `at` items of this one, by default all. Nothing is copied. Throws
   * TRAJECTORY_NOT_FOUND if this session has no items, and TRAJECTORY_EXISTS if the other one exists.
   */
  async fork(at?: number, sessionId: string = randomUUID()): Promise<AnabranchSession> {
    const other = new AnabranchSession(this.#client.client, { ...this.#options, sessionId });
    if (at !== undefined && !(Number.isInteger(at) && at >= 0)) {
      throw new RangeError(`at is ${at}: expected the number of items to share`);
    }
    const tip = await this.#find();
    const items = tip === undefined ? 0n : tip.end - 1n;
    if (at !== undefined && BigInt(at) > items) throw new RangeError(`at is ${at}: the session has ${items} items`);
    await other.#branch(tip?.id ?? this.#firstId(), at === undefined ? items : BigInt(at), other.#firstId());
    return other;
  }

  #firstId(): string {
    return v5(this.#sessionId, SESSIONS);
  }

  #described(): { taskId: string; name: string; labels: Record<string, string> } {
    return { taskId: this.#taskId(), name: this.#sessionId, labels: this.#labels() };
  }

  #labels(): Record<string, string> {
    return { integration: INTEGRATION, session: this.#sessionId };
  }

  #taskId(): string {
    return `${INTEGRATION}/${this.#sessionId}`;
  }

  #creation() {
    const trajectoryId = this.#firstId();
    const root = { stepNumber: 0n };
    return {
      trajectory: { trajectoryId, requestId: randomUUID(), ...this.#described(), root },
    };
  }

  async #read(trajectoryId: string, from: bigint, to: bigint): Promise<AgentInputItem[]> {
    const items: AgentInputItem[] = [];
    for await (const { step } of this.#client.read({ trajectoryId, from, to })) {
      const item = await itemOf(this.#client, step);
      if (item !== undefined) items.push(item);
    }
    return items;
  }

  /** Repeats a write of which nothing was stored because another process was faster. */
  async #retried<T>(write: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await write();
      } catch (error) {
        const reason = reasonOf(error) ?? '';
        // What this process remembers may be deleted.
        const forgotten = this.#tip !== undefined && reason === 'TRAJECTORY_NOT_FOUND';
        if (!forgotten && !OVERTAKEN.includes(reason)) throw error;
        this.#tip = undefined;
        // The id of a deleted trajectory whose steps a fork needs cannot be created again.
        if (reason === 'TRAJECTORY_EXISTS' && (await this.#find()) === undefined) throw error;
      }
    }
  }

  /** Finds where the session ends now. Undefined if it has no trajectory. */
  async #find(): Promise<Tip | undefined> {
    const filter = { taskId: this.#taskId(), labels: this.#labels(), pageSize: 1 };
    for await (const newest of this.#client.list(filter)) return tipOf(newest);
    return undefined;
  }

  /** Finds a trajectory that accepts items. Creates the branch that a process could not create when it died. */
  async #writable(): Promise<Tip | undefined> {
    const tip = await this.#find();
    if (tip?.sealed !== true) return tip;
    await this.#continueAt(tip);
    const next = await this.#find();
    if (next?.id !== tip.id) return next;
    const id = this.#sessionId;
    throw new Error(`session ${id} cannot continue: the trajectory that followed ${tip.id} was deleted`);
  }

  /**
   * Seals the trajectory, so that one call alone removes its last items, and continues on a branch before them. Returns
   * the sealed trajectory with its end; undefined if there is nothing to remove.
   */
  async #branchBack(act: 'pop' | 'clear'): Promise<{ id: string; end: bigint } | undefined> {
    const message = `${act} ${randomUUID()}`;
    return await this.#retried(async () => {
      const tip = await this.#writable();
      if (tip === undefined || tip.end <= 1n) return undefined;
      const seal = { status: Status.CANCELLED, message };
      const { trajectory } = await this.#client.call(({ trajectories }) =>
        trajectories.sealTrajectory({ trajectoryId: tip.id, seal }),
      );
      const end = trajectory?.nextStepNumber ?? tip.end;
      await this.#continueAt({ id: tip.id, end: act === 'pop' ? end - 1n : 1n });
      return { id: tip.id, end };
    });
  }

  /** Creates the branch behind the last visible item of a sealed trajectory, unless it exists. */
  async #continueAt({ id, end }: Pick<Tip, 'id' | 'end'>): Promise<void> {
    await orUndefined(['TRAJECTORY_EXISTS'], this.#branch(id, end - 1n, v5('next', id)));
    this.#tip = undefined;
  }

  /** Creates a branch of this session. One that would be too deep begins at a copy of the items. */
  async #branch(sourceId: string, stepNumber: bigint, branchId: string): Promise<void> {
    // Only repetitions of this call share the id: a branch of the same id may have been deleted.
    const branch = { stepNumber, branchId, requestId: randomUUID(), ...this.#described() };
    const branchOff = (trajectoryId: string) =>
      this.#client.call(({ trajectories }) => trajectories.branchTrajectory({ ...branch, trajectoryId }));
    const created = await orUndefined(['BRANCH_TOO_DEEP'], branchOff(sourceId));
    if (created === undefined) await branchOff(await this.#copied(sourceId, stepNumber));
  }

  /**
   * Copies the items up to a step into a root, and returns its id. The root has no task: it is found by the label of
   * the session, but does not hold the session.
   */
  async #copied(sourceId: string, last: bigint): Promise<string> {
    const trajectoryId = randomUUID();
    const root = { ...this.#creation().trajectory, trajectoryId, taskId: '' };
    await this.#client.call(({ trajectories }) => trajectories.createTrajectory(root));
    const steps: NewStep[] = [];
    for await (const { step } of this.#client.read({ trajectoryId: sourceId, from: 1n, to: last + 1n }))
      steps.push(step);
    for (const batch of await batchesOf(this.#client, steps)) await this.#client.append({ trajectoryId, steps: batch });
    return trajectoryId;
  }
}

/** What a sealed trajectory shows of itself: a pop hides its last item, a clear all. */
function tipOf({ id, uid, nextStepNumber, status, statusMessage }: Trajectory): Tip {
  const sealed = status !== Status.RUNNING;
  const [act] = sealed ? statusMessage.split(' ', 1) : [];
  const end = act === 'pop' ? nextStepNumber - 1n : act === 'clear' ? 1n : nextStepNumber;
  return { id, uid, end, sealed };
}
