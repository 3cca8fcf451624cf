import { randomUUID } from 'node:crypto';
import { type Timestamp, timestampFromMs, timestampMs } from '@bufbuild/protobuf/wkt';
import type { RunnableConfig } from '@langchain/core/runnables';
import {
  BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  type CheckpointTuple,
  type DeltaChannelHistory,
  maxChannelVersion,
  type PendingWrite,
  type SerializerProtocol,
  TASKS,
} from '@langchain/langgraph-checkpoint';
import { type Step, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/connection.ts';
import { reasonOf } from '../../../src/client/errors.ts';
import { orUndefined, type PatienceOptions, PatientClient } from '../patient_client.ts';
import { batchesOf, type NewStep } from '../step_batches.ts';
import { configOf, type Named, named } from './checkpoint_config.ts';
import {
  aboutOf,
  checkpointOf,
  checkpointStep,
  digestOf,
  FILTERS,
  filterLabels,
  isStored,
  type Layout,
  type NewCheckpoint,
  newLayout,
  noteStored,
  writesOf,
  writesStep,
} from './checkpoint_step.ts';
import { contentId, fitting, headOf, INTEGRATION, keyOf, taskOf } from './names.ts';
import { Recent } from './recent.ts';
import { branchOf, type Creation, creationOf } from './thread_creation.ts';
import { byCommit, committedBefore, type ListedStep, type Place, threadPages, threadSteps } from './thread_steps.ts';
import { WritesLine } from './writes_line.ts';

/** Another process has appended behind the parent, or nobody can any more. */
const OVERTAKEN = ['STEP_CONFLICT', 'TRAJECTORY_SEALED', 'WRITER_FENCED'];
/** The remembered parent does not exist any more, or a trajectory with the id was deleted before. */
const DELETED = ['TRAJECTORY_NOT_FOUND', 'TRAJECTORY_EXISTS', 'STEP_GAP', 'BRANCH_POINT_BEYOND_END'];
const MOST_ATTEMPTS = 8;
const PAGE = 100;
/** Checkpoints of the first page of a list. */
const FIRST_PAGE = 16;

/** Options of AnabranchSaver. */
export interface AnabranchSaverOptions extends PatienceOptions {
  /** Serializer of checkpoints and writes. Default: that of LangGraph. */
  readonly serde?: SerializerProtocol | undefined;
}

/** Where a checkpoint goes. */
interface Target {
  readonly trajectoryId: string;
  readonly create?: Creation;
}

/** A checkpoint that was read, without the writes that belong to it. */
interface Read {
  readonly ns: string;
  readonly id: string;
  readonly parentId: string | undefined;
  readonly checkpoint: Checkpoint;
  readonly metadata: CheckpointMetadata;
}

/**
 * A checkpoint saver of LangGraph. A thread's checkpoints are steps of a trajectory, one for each namespace, and a fork
 * is a branch. A call returns when its data is durable. Any number of processes can use one thread: a checkpoint whose
 * parent is not the last one begins a branch. Deleting needs the role WRITE, everything else WORK. Threads of Python's
 * `anabranch.langgraph` are others, because the serializers differ.
 *
 *     const checkpointer = new AnabranchSaver(connectClient());
 *     const graph = workflow.compile({ checkpointer });
 *     await graph.invoke(input, { configurable: { thread_id: 'customer-7' } });
 */
export class AnabranchSaver extends BaseCheckpointSaver {
  readonly #client: PatientClient;
  /** Where checkpoints are, so that put() needs one call. */
  readonly #places = new Recent<string, Place>(20_000);
  /** The number of the next step of trajectories, as far as this process has seen. */
  readonly #ends = new Recent<string, bigint>(5_000);
  /** Which checkpoint is at a number of a trajectory. */
  readonly #taken = new Recent<string, string>(20_000);
  readonly #layouts = new Recent<string, Layout>(1_000);
  readonly #lines = new Recent<string, WritesLine>(5_000);

  /** Sends nothing. */
  constructor(client: AnabranchClient, options: AnabranchSaverOptions = {}) {
    super(options.serde);
    this.#client = new PatientClient(client, options);
  }

  /**
   * Stores a checkpoint behind its parent. One that is stored already is not stored again, and replaced if it is
   * different. Throws TypeError for a value that cannot be serialized.
   */
  override async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions,
  ): Promise<RunnableConfig> {
    const given = { ...named(config), checkpoint, metadata, newVersions };
    const layout = this.#layout(given);
    let step = await checkpointStep(this.serde, layout, given);
    try {
      await this.#put(given, step);
    } catch (error) {
      if (reasonOf(error) !== 'STATE_NOT_FOUND' || layout.stored.size === 0) throw error;
      layout.stored = new Set();
      step = await checkpointStep(this.serde, layout, given);
      await this.#put(given, step);
    }
    noteStored(layout, step, checkpoint.channel_values);
    return configOf(given.threadId, given.ns, checkpoint.id);
  }

  /** Stores pending writes of a checkpoint. Repeated ones of one task and index count once. */
  override async putWrites(
    config: RunnableConfig,
    writes: PendingWrite[],
    taskId: string,
    taskPath = '',
  ): Promise<void> {
    const given = named(config);
    const step = await writesStep(this.serde, given, writes, taskId, taskPath);
    if (writes.length > 0) await this.#line(given.threadId).add(step);
  }

  /** Returns the checkpoint that a config names, by default the latest of its thread and namespace. */
  override async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    const threadId = config.configurable?.thread_id;
    if (threadId === undefined || threadId === null) return undefined;
    const { ns, checkpointId } = named(config);
    if (checkpointId !== undefined) {
      const steps = await this.#steps(String(threadId), [keyOf(ns, checkpointId)]);
      const newest = steps.find(({ step }) => step.labels.kind === 'checkpoint');
      return newest === undefined ? undefined : await this.#tuple(String(threadId), newest, steps);
    }
    const filter = { anyOfStates: [headOf(ns)], labels: { kind: 'checkpoint' }, pageSize: 1 };
    for await (const [latest] of threadPages(this.#client, String(threadId), filter)) {
      return latest === undefined ? undefined : await this.#tuple(String(threadId), latest);
    }
    return undefined;
  }

  /** Lists checkpoints, the newest first; without a thread, thread by thread. */
  override async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
    const threadId = config.configurable?.thread_id;
    const threads = threadId === undefined || threadId === null ? await this.#threads() : [String(threadId)];
    let left = options.limit ?? Number.POSITIVE_INFINITY;
    for (const thread of threads) {
      if (left <= 0) return;
      for await (const tuple of this.#list(thread, config, { ...options, limit: left })) {
        yield tuple;
        left -= 1;
        if (left <= 0) return;
      }
    }
  }

  /**
   * Returns the writes to channels since the latest ancestor that has their values, and these values. Reads ancestors
   * in pages, and not one by one.
   */
  override async getDeltaChannelHistory({
    config,
    channels,
  }: {
    config: RunnableConfig;
    channels: string[];
  }): Promise<Record<string, DeltaChannelHistory>> {
    const found = new Map(channels.map((channel) => [channel, { writes: [] } as DeltaChannelHistory]));
    const open = new Set(channels);
    for await (const { checkpoint, pendingWrites = [] } of this.#ancestors(config)) {
      for (const write of pendingWrites.toReversed())
        if (open.has(write[1])) found.get(write[1])?.writes.unshift(write);
      for (const channel of open) {
        const seed = checkpoint.channel_values[channel];
        if (seed === undefined) continue;
        Object.assign(found.get(channel) ?? {}, { seed });
        open.delete(channel);
      }
      if (open.size === 0) break;
    }
    return Object.fromEntries(found);
  }

  /** Deletes a thread. Threads that were forked or copied from it keep what they share. No effect if there is none. */
  override async deleteThread(threadId: string): Promise<void> {
    for await (const { id } of this.#client.list({ taskId: taskOf(threadId) })) await this.#client.delete(id);
  }

  /** Stores a checkpoint unless it is stored: behind its parent if that is the last one, else as a branch. */
  async #put(given: NewCheckpoint, step: NewStep): Promise<void> {
    const { threadId, ns, checkpoint } = given;
    const own = placeKey({ threadId, ns, checkpointId: checkpoint.id });
    const [[fitted = step] = []] = await batchesOf(this.#client, [step]);
    let [branches, random] = [false, ''];
    for (let attempt = 1; ; attempt += 1) {
      const { before, parent } = await this.#before(given, own);
      if (before !== undefined) {
        if (await isStored(this.serde, before, given, step)) return;
        [branches, random] = [true, random || randomUUID()];
      }
      const stepNumber = parent === undefined ? 0n : parent.stepNumber + 1n;
      const { trajectoryId: parentId = '', heirId } = parent ?? {};
      let continues = parent !== undefined && heirId === parentId && !branches;
      if (continues && (this.#ends.get(parentId) ?? 0n) > stepNumber) {
        [branches, continues] = [true, false];
        if (await this.#isAt(own, given, parentId, stepNumber)) continue;
      }
      const target = continues ? { trajectoryId: parentId } : this.#creation(given, parent, fitted, random);
      try {
        await this.#client.append({ ...target, steps: [{ ...fitted, stepNumber }] });
        const { trajectoryId } = target;
        const place = { trajectoryId, stepNumber, heirId: trajectoryId, time: undefined };
        return this.#learn(threadId, ns, checkpoint.id, place);
      } catch (error) {
        const reason = reasonOf(error) ?? '';
        const isTaken = OVERTAKEN.includes(reason);
        if (attempt === MOST_ATTEMPTS || (!isTaken && !DELETED.includes(reason))) throw error;
        // An id that is derived from the content was used before: it has other steps, or was deleted.
        if (!continues) random = randomUUID();
        if (!isTaken) this.#places.forget(placeKey(given));
        else {
          branches = true;
          // The next child of this parent is sent as a branch at once.
          if (continues) this.#ends.put(parentId, stepNumber + 1n);
          await this.#isAt(own, given, target.trajectoryId, stepNumber);
        }
      }
    }
  }

  /** Returns a checkpoint, unless it is new as far as this process knows, and where its parent is. */
  async #before(given: NewCheckpoint, own: string): Promise<{ before?: Step; parent?: Place }> {
    const { threadId, ns, checkpointId: parentId, checkpoint } = given;
    const known = parentId === undefined ? undefined : this.#places.get(placeKey(given));
    if (!this.#places.has(own) && (parentId === undefined || known !== undefined)) return found(undefined, known);
    this.#places.forget(own);
    const ids = parentId === undefined ? [checkpoint.id] : [checkpoint.id, parentId];
    const byId = new Map<string, ListedStep>();
    const filter = { anyOfStates: ids.map((id) => keyOf(ns, id)), labels: { kind: 'checkpoint' }, hasBytes: false };
    for await (const page of threadPages(this.#client, threadId, filter)) {
      for (const listed of page) {
        const { checkpoint_id: id } = aboutOf(listed.step);
        if (byId.has(id)) continue;
        byId.set(id, listed);
        this.#learn(threadId, ns, id, listed.place);
      }
      if (byId.size === new Set(ids).size) break;
    }
    return found(byId.get(checkpoint.id)?.step, byId.get(parentId ?? '')?.place ?? known);
  }

  /** Returns whether a checkpoint is at a number of a trajectory. Remembers which one is. */
  async #isAt(own: string, { threadId }: Named, trajectoryId: string, stepNumber: bigint): Promise<boolean> {
    const at = takenKey(trajectoryId, stepNumber);
    if (!this.#taken.has(at)) {
      const request = { trajectoryId, stepNumber };
      const answer = this.#client.call(({ trajectories }) => trajectories.getStep(request));
      const step = (await orUndefined(['TRAJECTORY_NOT_FOUND', 'STEP_NOT_FOUND'], answer))?.step;
      if (step === undefined) return false;
      const { checkpoint_ns: ns, checkpoint_id: checkpointId } = aboutOf(step);
      this.#taken.put(at, placeKey({ threadId, ns, checkpointId }));
    }
    const isOwn = this.#taken.get(at) === own;
    // It is not new.
    if (isOwn) this.#places.put(own, { trajectoryId, stepNumber, heirId: trajectoryId, time: undefined });
    return isOwn;
  }

  /**
   * Returns a trajectory that begins with a step, or a branch that does. Its id is derived from the content, so that a
   * repetition creates no other one, and from a random text.
   */
  #creation({ threadId, ns }: Named, parent: Place | undefined, step: NewStep, random: string): Target {
    const content = [threadId, ns, step.metadataJson ?? '', ...(step.states ?? []).map(digestOf), random];
    if (parent === undefined) {
      const trajectoryId = contentId(...content);
      return { trajectoryId, create: creationOf(threadId, trajectoryId, ns) };
    }
    const trajectoryId = contentId(parent.trajectoryId, Number(parent.stepNumber), ...content);
    const source = { trajectoryId: parent.heirId, stepNumber: parent.stepNumber };
    return { trajectoryId, create: branchOf(threadId, trajectoryId, source, ns) };
  }

  async #find({ threadId, ns, checkpointId = '' }: Named): Promise<Place | undefined> {
    const filter = {
      anyOfStates: [keyOf(ns, checkpointId)],
      labels: { kind: 'checkpoint' },
      pageSize: 1,
      view: View.BASIC,
    };
    for await (const [found] of threadPages(this.#client, threadId, filter)) {
      if (found !== undefined) this.#learn(threadId, ns, checkpointId, found.place);
      return found?.place;
    }
    return undefined;
  }

  #learn(threadId: string, ns: string, checkpointId: string, place: Place): void {
    const { trajectoryId, heirId, stepNumber } = place;
    const key = placeKey({ threadId, ns, checkpointId });
    this.#places.put(key, place);
    if (heirId !== trajectoryId) return;
    this.#taken.put(takenKey(trajectoryId, stepNumber), key);
    if (stepNumber >= (this.#ends.get(trajectoryId) ?? 0n)) this.#ends.put(trajectoryId, stepNumber + 1n);
  }

  /** Returns the steps with one of these states, the newest first. */
  #steps(threadId: string, anyOfStates: string[], kind?: string): Promise<ListedStep[]> {
    return threadSteps(this.#client, threadId, { anyOfStates, ...(kind === undefined ? {} : { labels: { kind } }) });
  }

  async #read(threadId: string, stored: ListedStep): Promise<Read> {
    const { checkpoint_ns: ns, checkpoint_id: id, parent_checkpoint_id: parentId } = aboutOf(stored.step);
    this.#learn(threadId, ns, id, stored.place);
    return { ns, id, parentId, ...(await checkpointOf(this.serde, stored)) };
  }

  /** Returns a checkpoint with its writes. `steps`: those with its key, if they are known. */
  async #tuple(threadId: string, stored: ListedStep, steps?: readonly ListedStep[]): Promise<CheckpointTuple> {
    const read = await this.#read(threadId, stored);
    const keys = [...(steps === undefined ? [keyOf(read.ns, read.id)] : []), ...keysOfSends(read)];
    const others = keys.length === 0 ? [] : await this.#steps(threadId, keys, 'writes');
    return await this.#withWrites(threadId, read, await this.#writes([...(steps ?? []), ...others]));
  }

  /** Returns the pending writes of each checkpoint, by its key. */
  async #writes(steps: readonly ListedStep[]): Promise<Map<string, CheckpointPendingWrite[]>> {
    const byKey = new Map<string, ListedStep[]>();
    for (const each of steps.filter(({ step }) => step.labels.kind === 'writes').sort(byCommit)) {
      const { checkpoint_ns: ns, checkpoint_id: id } = aboutOf(each.step);
      const key = keyOf(ns, id);
      byKey.set(key, [...(byKey.get(key) ?? []), each]);
    }
    const writes = new Map<string, CheckpointPendingWrite[]>();
    for (const [key, own] of byKey) writes.set(key, await writesOf(this.serde, own));
    return writes;
  }

  async #withWrites(
    threadId: string,
    read: Read,
    writes: ReadonlyMap<string, CheckpointPendingWrite[]>,
  ): Promise<CheckpointTuple> {
    const { ns, id, parentId, checkpoint, metadata } = read;
    for (const key of keysOfSends(read)) this.#addSends(checkpoint, writes.get(key) ?? []);
    return {
      config: configOf(threadId, ns, id),
      checkpoint,
      metadata,
      ...(parentId === undefined ? {} : { parentConfig: configOf(threadId, ns, parentId) }),
      pendingWrites: writes.get(keyOf(ns, id)) ?? [],
    };
  }

  /** Checkpoints before version 4 have no channel for the tasks that the parent's writes send. */
  #addSends(checkpoint: Checkpoint, writes: readonly CheckpointPendingWrite[]): void {
    const versions = Object.values(checkpoint.channel_versions);
    checkpoint.channel_values[TASKS] = writes.filter(([, channel]) => channel === TASKS).map(([, , value]) => value);
    checkpoint.channel_versions[TASKS] =
      versions.length > 0 ? maxChannelVersion(...versions) : this.getNextVersion(undefined);
  }

  /** Returns the ancestors of a checkpoint, the nearest first. */
  async *#ancestors(config: RunnableConfig): AsyncGenerator<CheckpointTuple> {
    const tuple = await this.getTuple(config);
    let wanted: unknown = tuple?.parentConfig?.configurable?.checkpoint_id;
    if (tuple === undefined || wanted === undefined) return;
    const { threadId, ns } = named(tuple.config);
    const within = { configurable: { thread_id: threadId, checkpoint_ns: ns } };
    for await (const each of this.#list(threadId, within, {}, await this.#committed(tuple.config, threadId))) {
      if (each.config.configurable?.checkpoint_id !== wanted) continue;
      yield each;
      wanted = each.parentConfig?.configurable?.checkpoint_id;
      if (wanted === undefined) return;
    }
  }

  async *#list(
    threadId: string,
    config: RunnableConfig,
    { limit = PAGE, before, filter = {} }: CheckpointListOptions,
    upTo?: Place,
  ): AsyncGenerator<CheckpointTuple> {
    const { checkpoint_ns: ns, checkpoint_id: wanted } = config.configurable ?? {};
    const { checkpoint_ns: beforeNs, checkpoint_id: beforeId } = before?.configurable ?? {};
    const place = before === undefined ? undefined : await this.#committed(before, threadId);
    const commitTimeTo = timeAfter(upTo ?? place);
    const isExact =
      wanted === undefined && beforeId === undefined && Object.keys(filter).every((key) => key in FILTERS);
    const labels = {
      kind: 'checkpoint',
      ...filterLabels(filter),
      ...(ns === undefined ? {} : { ns: fitting(String(ns)) }),
    };
    const state = ns === undefined ? [] : [wanted ? keyOf(String(ns), String(wanted)) : headOf(String(ns))];
    const mostSteps = isExact ? Math.min(limit, PAGE) : PAGE;
    const pageSize = Math.min(mostSteps, FIRST_PAGE);
    const request = {
      labels,
      anyOfStates: state,
      pageSize,
      mostSteps,
      ...(commitTimeTo === undefined ? {} : { commitTimeTo }),
    };
    const listed = new Set(beforeId ? [keyOf(String(beforeNs ?? ''), String(beforeId))] : []);
    const isBefore =
      place === undefined
        ? ({ step }: ListedStep) => !beforeId || aboutOf(step).checkpoint_id < String(beforeId)
        : committedBefore(place);
    for await (const page of threadPages(this.#client, threadId, request)) {
      const found: Read[] = [];
      for (const stored of page) {
        const { checkpoint_ns, checkpoint_id } = aboutOf(stored.step);
        const key = keyOf(checkpoint_ns, checkpoint_id);
        if (!isBefore(stored) || listed.has(key) || (wanted && checkpoint_id !== String(wanted))) continue;
        listed.add(key);
        const read = await this.#read(threadId, stored);
        if (matches(read.metadata as Readonly<Record<string, unknown>>, filter)) found.push(read);
      }
      const keys = new Set(found.flatMap((read) => [keyOf(read.ns, read.id), ...keysOfSends(read)]));
      const steps = keys.size === 0 ? [] : await this.#steps(threadId, [...keys], 'writes');
      const writes = await this.#writes(steps);
      for (const read of found) yield await this.#withWrites(threadId, read, writes);
    }
  }

  /** Returns where a checkpoint is and when it was committed. Undefined if it is not stored. */
  async #committed(config: RunnableConfig, threadId: string): Promise<Place | undefined> {
    const wanted = named({ configurable: { thread_id: threadId, ...config.configurable } });
    if (wanted.checkpointId === undefined) return undefined;
    const known = this.#places.get(placeKey(wanted));
    return known?.time === undefined ? await this.#find(wanted) : known;
  }

  /** Returns the threads that have checkpoints, the newest first. */
  async #threads(): Promise<Set<string>> {
    const threads = new Set<string>();
    const labels = { integration: INTEGRATION, kind: 'checkpoints' };
    for await (const { metadataJson } of this.#client.list({ labels, view: View.FULL })) {
      threads.add(JSON.parse(metadataJson).thread_id);
    }
    return threads;
  }

  #layout({ threadId, ns }: Named): Layout {
    const key = JSON.stringify([threadId, ns]);
    const layout = this.#layouts.get(key) ?? newLayout();
    this.#layouts.put(key, layout);
    return layout;
  }

  #line(threadId: string): WritesLine {
    const line = this.#lines.get(threadId) ?? new WritesLine(this.#client, threadId);
    this.#lines.put(threadId, line);
    return line;
  }
}

/** Returns a time behind the commit of a step. */
function timeAfter(place: Place | undefined): Timestamp | undefined {
  // Times have fractions of milliseconds on Postgres.
  return place?.time === undefined ? undefined : timestampFromMs(timestampMs(place.time) + 1);
}

function placeKey({ threadId, ns, checkpointId }: Named): string {
  return JSON.stringify([threadId, ns, checkpointId]);
}

function takenKey(trajectoryId: string, stepNumber: bigint): string {
  return `${trajectoryId}/${stepNumber}`;
}

function found(before: Step | undefined, parent: Place | undefined): { before?: Step; parent?: Place } {
  return { ...(before !== undefined && { before }), ...(parent !== undefined && { parent }) };
}

/** Returns the key of the parent, if a checkpoint needs its writes. */
function keysOfSends({ ns, parentId, checkpoint }: Read): string[] {
  return checkpoint.v < 4 && parentId !== undefined ? [keyOf(ns, parentId)] : [];
}

function matches(metadata: Readonly<Record<string, unknown>>, filter: Readonly<Record<string, unknown>>): boolean {
  return Object.entries(filter).every(([key, value]) => metadata[key] === value);
}
