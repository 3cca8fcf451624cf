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
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/connection.ts';
import { reasonOf } from '../../../src/client/errors.ts';
import { type PatienceOptions, PatientClient } from '../patient_client.ts';
import { batchesOf, type NewStep } from '../step_batches.ts';
import { configOf, type Named, named } from './checkpoint_config.ts';
import {
  aboutOf,
  checkpointOf,
  checkpointStep,
  FILTERS,
  filterLabels,
  type Layout,
  type NewCheckpoint,
  newLayout,
  noteStored,
  writesOf,
  writesStep,
} from './checkpoint_step.ts';
import { fitting, headOf, INTEGRATION, keyOf, taskOf } from './names.ts';
import { Recent } from './recent.ts';
import { branchOf, type Creation, creationOf } from './thread_creation.ts';
import { byCommit, type ListedStep, type Place, threadPages, threadSteps } from './thread_steps.ts';
import { WritesLine } from './writes_line.ts';

/** Another process has appended behind the parent, or nobody can any more. */
const OVERTAKEN = ['STEP_CONFLICT', 'TRAJECTORY_SEALED', 'WRITER_FENCED'];
/** The remembered parent does not exist any more. */
const DELETED = ['TRAJECTORY_NOT_FOUND', 'STEP_GAP', 'BRANCH_POINT_BEYOND_END'];
const PAGE = 100;

/** Options of AnabranchSaver. */
export interface AnabranchSaverOptions extends PatienceOptions {
  /** Serializer of checkpoints and writes. Default: that of LangGraph. */
  readonly serde?: SerializerProtocol | undefined;
}

/** Where a checkpoint goes. */
interface Target {
  readonly target: { readonly trajectoryId: string; readonly create?: Creation };
  readonly stepNumber: bigint;
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
  readonly #layouts = new Recent<string, Layout>(1_000);
  readonly #lines = new Recent<string, WritesLine>(5_000);

  /** Sends nothing. */
  constructor(client: AnabranchClient, options: AnabranchSaverOptions = {}) {
    super(options.serde);
    this.#client = new PatientClient(client, options);
  }

  /** Stores a checkpoint behind its parent. Throws TypeError for a value that cannot be serialized. */
  override async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions,
  ): Promise<RunnableConfig> {
    const given = { ...named(config), checkpoint, metadata, newVersions };
    const layout = this.#layout(given);
    let step = await checkpointStep(this.serde, layout, given);
    let parent = await this.#parentOf(given);
    for (;;) {
      try {
        await this.#append(given, step, parent);
        noteStored(layout, step, checkpoint.channel_values);
        return configOf(given.threadId, given.ns, checkpoint.id);
      } catch (error) {
        const reason = reasonOf(error) ?? '';
        if (reason === 'STATE_NOT_FOUND' && layout.stored.size > 0) {
          layout.stored = new Set();
          step = await checkpointStep(this.serde, layout, given);
        } else if (parent !== undefined && DELETED.includes(reason)) {
          this.#places.forget(placeKey(given));
          parent = await this.#parentOf(given);
        } else if (parent === undefined || !OVERTAKEN.includes(reason)) throw error;
      }
    }
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

  async #append(given: NewCheckpoint, step: NewStep, parent: Place | undefined): Promise<void> {
    const [[fitted] = []] = await batchesOf(this.#client, [step]);
    const { target, stepNumber } = this.#target(given, parent);
    try {
      const { commitTime } = await this.#client.append({ ...target, steps: [{ ...fitted, stepNumber }] });
      const time = commitTime === undefined ? undefined : timestampFromMs(commitTime.getTime());
      const { trajectoryId } = target;
      this.#learn(given.threadId, given.ns, given.checkpoint.id, {
        trajectoryId,
        stepNumber,
        heirId: trajectoryId,
        time,
      });
    } catch (error) {
      // The next try begins a branch.
      const taken = parent !== undefined && target.create === undefined && OVERTAKEN.includes(reasonOf(error) ?? '');
      if (taken) this.#ends.put(parent.trajectoryId, stepNumber + 1n);
      throw error;
    }
  }

  /** Returns where a checkpoint goes: behind its parent, onto a branch, or to the beginning of a trajectory. */
  #target({ threadId, ns }: Named, parent: Place | undefined): Target {
    const id = randomUUID();
    if (parent === undefined)
      return { target: { trajectoryId: id, create: creationOf(threadId, id, ns) }, stepNumber: 0n };
    const stepNumber = parent.stepNumber + 1n;
    const { trajectoryId, heirId } = parent;
    if (heirId === trajectoryId && (this.#ends.get(trajectoryId) ?? stepNumber) === stepNumber) {
      return { target: { trajectoryId }, stepNumber };
    }
    const source = { trajectoryId: heirId, stepNumber: parent.stepNumber };
    return { target: { trajectoryId: id, create: branchOf(threadId, id, source, ns) }, stepNumber };
  }

  /** Returns where the parent of a checkpoint is. Undefined if it has none, or none that is stored. */
  async #parentOf(given: Named): Promise<Place | undefined> {
    if (given.checkpointId === undefined) return undefined;
    return this.#places.get(placeKey(given)) ?? (await this.#find(given));
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
    this.#places.put(placeKey({ threadId, ns, checkpointId }), place);
    const end = this.#ends.get(trajectoryId) ?? 0n;
    if (heirId === trajectoryId && stepNumber >= end) this.#ends.put(trajectoryId, stepNumber + 1n);
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
    for await (const each of this.#list(threadId, within, {}, await this.#timeOf(tuple.config, threadId))) {
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
    upTo?: Timestamp,
  ): AsyncGenerator<CheckpointTuple> {
    const { checkpoint_ns: ns, checkpoint_id: wanted } = config.configurable ?? {};
    const beforeId: unknown = before?.configurable?.checkpoint_id;
    const commitTimeTo = upTo ?? (before === undefined ? undefined : await this.#timeOf(before, threadId));
    const isExact =
      wanted === undefined && beforeId === undefined && Object.keys(filter).every((key) => key in FILTERS);
    const labels = {
      kind: 'checkpoint',
      ...filterLabels(filter),
      ...(ns === undefined ? {} : { ns: fitting(String(ns)) }),
    };
    const state = ns === undefined ? [] : [wanted ? keyOf(String(ns), String(wanted)) : headOf(String(ns))];
    const pageSize = isExact ? Math.min(limit, PAGE) : PAGE;
    const request = { labels, anyOfStates: state, pageSize, ...(commitTimeTo === undefined ? {} : { commitTimeTo }) };
    const listed = new Set<string>();
    for await (const page of threadPages(this.#client, threadId, request)) {
      const found: Read[] = [];
      for (const stored of page) {
        const { checkpoint_ns, checkpoint_id } = aboutOf(stored.step);
        const key = keyOf(checkpoint_ns, checkpoint_id);
        if (listed.has(key) || (wanted && checkpoint_id !== String(wanted))) continue;
        if (beforeId && checkpoint_id >= String(beforeId)) continue;
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

  /** Returns a time behind the commit of a checkpoint. Undefined if it is not stored. */
  async #timeOf(config: RunnableConfig, threadId: string): Promise<Timestamp | undefined> {
    const before = named({ configurable: { thread_id: threadId, ...config.configurable } });
    if (before.checkpointId === undefined) return undefined;
    const place = this.#places.get(placeKey(before)) ?? (await this.#find(before));
    // Times have fractions of milliseconds on Postgres.
    return place?.time === undefined ? undefined : timestampFromMs(timestampMs(place.time) + 1);
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

function placeKey({ threadId, ns, checkpointId }: Named): string {
  return JSON.stringify([threadId, ns, checkpointId]);
}

/** Returns the key of the parent, if a checkpoint needs its writes. */
function keysOfSends({ ns, parentId, checkpoint }: Read): string[] {
  return checkpoint.v < 4 && parentId !== undefined ? [keyOf(ns, parentId)] : [];
}

function matches(metadata: Readonly<Record<string, unknown>>, filter: Readonly<Record<string, unknown>>): boolean {
  return Object.entries(filter).every(([key, value]) => metadata[key] === value);
}
