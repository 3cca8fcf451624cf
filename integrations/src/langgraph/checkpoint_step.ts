import { createHash } from 'node:crypto';
import {
  type ChannelVersions,
  type Checkpoint,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  compareWritesSortKeys,
  type PendingWrite,
  type SerializerProtocol,
  WRITES_IDX_MAP,
  writesSortKey,
} from '@langchain/langgraph-checkpoint';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { NewStep } from '../step_batches.ts';
import type { Named } from './checkpoint_config.ts';
import { type Prints, printsOf, shownMessages } from './messages.ts';
import { channelState, fitting, headOf, keyOf } from './names.ts';

/** Channel values with more bytes are states of their own. */
const LARGE_BYTES = 64 * 1024;
/** A step has at most 256 states, two of which are the checkpoint and its metadata. */
const MOST_LARGE = 250;
/** The channel that has the messages of most graphs. */
const MESSAGES = 'messages';
const MEDIA_TYPE = 'application/vnd.langgraph+';

/** Type and bytes of a serialized value. */
type Typed = readonly [type: string, data: Uint8Array];

/** A state to append. */
type NewState = NonNullable<NewStep['states']>[number];

/** What metadata_json of a step says. */
interface About {
  readonly checkpoint_id: string;
  readonly checkpoint_ns: string;
  readonly parent_checkpoint_id?: string;
  /** The states of large values, by channel. */
  readonly channels?: Readonly<Record<string, string>>;
  readonly task_id?: string;
  readonly task_path?: string;
  readonly writes?: readonly (readonly [index: number, channel: string])[];
}

/** A step that was read, with the bytes of its states. */
export interface StoredStep {
  readonly step: Step;
  /** Bytes by digest. */
  readonly data: ReadonlyMap<string, Uint8Array>;
}

/**
 * What is known of the newest checkpoint of a namespace, so that the next one is laid out and sent with less work. What
 * is stored is correct also if this is out of date.
 */
export interface Layout {
  /** The version of each channel whose size was measured. */
  readonly measured: Map<string, unknown>;
  /** The channels whose values are large. */
  large: ReadonlySet<string>;
  /** Digests of large values that are stored. */
  stored: ReadonlySet<string>;
  /** The numbers of the messages. */
  messages: Prints;
}

export function newLayout(): Layout {
  return { measured: new Map(), large: new Set(), stored: new Set(), messages: new Map() };
}

/** The label for each key of the metadata by which the server filters. */
export const FILTERS: Readonly<Record<string, string>> = { source: 'source', step: 'step', run_id: 'run' };

/** A checkpoint to store. */
export interface NewCheckpoint extends Named {
  readonly checkpoint: Checkpoint;
  readonly metadata: CheckpointMetadata;
  readonly newVersions: ChannelVersions;
}

/** Returns the step of a checkpoint, without its number. Throws TypeError if the serializer refuses a value. */
export async function checkpointStep(
  serde: SerializerProtocol,
  layout: Layout,
  given: NewCheckpoint,
): Promise<NewStep> {
  const large = await largeValues(serde, layout, given.checkpoint, carriedValues(given));
  return await stepWith(serde, layout, given, large);
}

/** Returns whether a stored step has this checkpoint, whose step would be `step`. */
export async function isStored(
  serde: SerializerProtocol,
  stored: Step,
  given: NewCheckpoint,
  step: NewStep,
): Promise<boolean> {
  if (isSame(stored, step)) return true;
  // Which values are states of their own depends on what a process knows of other checkpoints.
  const values = carriedValues(given);
  const large = new Map<string, Typed>();
  for (const channel of Object.keys(aboutOf(stored).channels ?? {})) {
    if (channel in values)
      large.set(channel, await dumped(serde, values[channel], `checkpoint ${given.checkpoint.id}`));
  }
  return isSame(stored, await stepWith(serde, newLayout(), given, large));
}

/** What steps show of messages can differ. */
function isSame(stored: Step, step: NewStep): boolean {
  return stored.metadataJson === step.metadataJson && contentOf(stored) === contentOf(step);
}

function contentOf({ states = [] }: NewStep): string {
  return JSON.stringify(states.map((state) => [state.name, state.mediaType, digestOf(state)]).sort());
}

export function digestOf({ digest, data = new Uint8Array() }: NewState): string {
  return digest || createHash('sha256').update(data).digest('hex');
}

async function stepWith(
  serde: SerializerProtocol,
  layout: Layout,
  given: NewCheckpoint,
  large: ReadonlyMap<string, Typed>,
): Promise<NewStep> {
  const { ns, checkpointId: parentId, checkpoint, metadata, newVersions } = given;
  const values = carriedValues(given);
  const small = Object.fromEntries(Object.entries(values).filter(([channel]) => !large.has(channel)));
  const what = `checkpoint ${checkpoint.id}`;
  const states = [
    stateOf(headOf(ns), await dumped(serde, { ...checkpoint, channel_values: small }, what)),
    stateOf(keyOf(ns, checkpoint.id), await dumped(serde, metadata, `the metadata of ${what}`)),
    ...[...large].map(([channel, typed]) => named(stateOf(channelState(channel), typed), layout.stored)),
  ];
  const channels = Object.fromEntries([...large.keys()].map((channel) => [channel, channelState(channel)]));
  const about: About = {
    checkpoint_id: checkpoint.id,
    checkpoint_ns: ns,
    ...(parentId !== undefined && { parent_checkpoint_id: parentId }),
    ...(large.size > 0 && { channels }),
  };
  const shown = MESSAGES in newVersions ? shownMessages(values[MESSAGES], layout.messages) : {};
  return {
    ...shown,
    states,
    metadataJson: JSON.stringify(about),
    labels: { kind: 'checkpoint', ns: fitting(ns), ...filterLabels(metadata as Readonly<Record<string, unknown>>) },
  };
}

/** Returns the labels that metadata, or a filter of it, have. */
export function filterLabels(metadata: Readonly<Record<string, unknown>>): Record<string, string> {
  const labels = Object.entries(FILTERS).flatMap(([key, label]) => {
    const value = metadata[key];
    return value === undefined || value === null ? [] : [[label, fitting(String(value))] as const];
  });
  return Object.fromEntries(labels);
}

/** Records what is known of a checkpoint that is stored. */
export function noteStored(layout: Layout, step: NewStep, { messages }: Checkpoint['channel_values']): void {
  layout.stored = new Set(step.states?.flatMap(({ digest }) => (digest === undefined ? [] : [digest])));
  layout.messages = printsOf(messages);
}

/**
 * Without a parent there is no other checkpoint that could have the value of a channel without a new version. A copy of
 * a checkpoint without a parent has none either, and no new versions.
 */
function carriedValues(given: NewCheckpoint): Readonly<Record<string, unknown>> {
  const { checkpoint, checkpointId, metadata, newVersions } = given;
  const values = checkpoint.channel_values;
  if (checkpointId !== undefined || metadata.source === 'fork') return values;
  return Object.fromEntries(Object.entries(values).filter(([channel]) => channel in newVersions));
}

async function largeValues(
  serde: SerializerProtocol,
  layout: Layout,
  { id, channel_versions: versions }: Checkpoint,
  values: Readonly<Record<string, unknown>>,
): Promise<Map<string, Typed>> {
  const large: [string, Typed][] = [];
  for (const [channel, value] of Object.entries(values)) {
    const version = versions[channel];
    const isKnown = version !== undefined && layout.measured.get(channel) === version;
    if (isKnown && !layout.large.has(channel)) continue;
    layout.measured.set(channel, version);
    if (isSmall(value)) continue;
    const typed = await dumped(serde, value, `channel ${JSON.stringify(channel)} of checkpoint ${id}`);
    if (typed[1].byteLength > LARGE_BYTES) large.push([channel, typed]);
  }
  large.sort(([, one], [, other]) => other[1].byteLength - one[1].byteLength);
  const chosen = new Map(large.slice(0, MOST_LARGE));
  const others = [...layout.large].filter((channel) => !(channel in values));
  layout.large = new Set([...others, ...chosen.keys()]);
  return chosen;
}

function isSmall(value: unknown): boolean {
  if (typeof value === 'string') return value.length * 6 <= LARGE_BYTES;
  return value === null || typeof value !== 'object';
}

async function dumped(serde: SerializerProtocol, value: unknown, what: string): Promise<Typed> {
  const refused = `${what} cannot be serialized, so nothing was stored`;
  let typed: Typed;
  try {
    typed = await serde.dumpsTyped(value);
  } catch (error) {
    throw new TypeError(`${refused}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
  if (typeof value === 'object' && isReplaced(typed)) throw new TypeError(`${refused}: JSON cannot hold a part of it`);
  return typed;
}

/** LangGraph's serializer stores this text in place of a value that JSON.stringify refuses. */
function isReplaced([type, data]: Typed): boolean {
  return type === 'json' && data.byteLength < 100 && new TextDecoder().decode(data).startsWith('"[unable to serialize');
}

function stateOf(name: string, [type, data]: Typed): NewState & { data: Uint8Array } {
  return { name, data, mediaType: `${MEDIA_TYPE}${type}` };
}

/** Names a state by its digest; without its bytes if they are stored. */
function named({ data, ...state }: NewState & { data: Uint8Array }, stored: ReadonlySet<string>): NewState {
  const digest = createHash('sha256').update(data).digest('hex');
  return stored.has(digest) ? { ...state, digest } : { ...state, digest, data };
}

/** Returns the step of pending writes, without its number. Throws TypeError if the serializer refuses a value. */
export async function writesStep(
  serde: SerializerProtocol,
  { ns, checkpointId }: Named,
  writes: readonly PendingWrite[],
  taskId: string,
  taskPath: string,
): Promise<NewStep> {
  if (checkpointId === undefined) {
    throw new TypeError('config has no checkpoint_id: expected the config that put() returned');
  }
  const indexes = writes.map(([channel], i) => [WRITES_IDX_MAP[channel] ?? i, channel] as const);
  const values = writes.map(([, value]) => value);
  const about: About = {
    checkpoint_id: checkpointId,
    checkpoint_ns: ns,
    task_id: taskId,
    task_path: taskPath,
    writes: indexes,
  };
  return {
    states: [stateOf(keyOf(ns, checkpointId), await dumped(serde, values, `a write of task ${taskId}`))],
    metadataJson: JSON.stringify(about),
    labels: { kind: 'writes', ns: fitting(ns) },
  };
}

export function aboutOf({ metadataJson }: Step): About {
  return JSON.parse(metadataJson);
}

/** Returns the checkpoint of a step, and its metadata. */
export async function checkpointOf(
  serde: SerializerProtocol,
  stored: StoredStep,
): Promise<{ checkpoint: Checkpoint; metadata: CheckpointMetadata }> {
  const { checkpoint_ns: ns, checkpoint_id: id, channels = {} } = aboutOf(stored.step);
  const checkpoint: Checkpoint = await loaded(serde, stored, headOf(ns));
  for (const [channel, name] of Object.entries(channels)) {
    checkpoint.channel_values[channel] = await loaded(serde, stored, name);
  }
  return { checkpoint, metadata: await loaded(serde, stored, keyOf(ns, id)) };
}

async function loaded<T>(serde: SerializerProtocol, { step, data }: StoredStep, name: string): Promise<T> {
  const state = step.states.find((each) => each.name === name);
  const bytes = state === undefined ? undefined : data.get(state.digest);
  if (state === undefined || bytes === undefined) {
    throw new Error(`step ${step.stepNumber} of the thread has no state ${name}: retention may have removed it`);
  }
  return await serde.loadsTyped(state.mediaType.slice(MEDIA_TYPE.length), bytes);
}

/** A stored write, with its place among the writes of its checkpoint. */
interface Write {
  readonly taskId: string;
  readonly taskPath: string;
  readonly index: number;
  readonly channel: string;
  readonly value: unknown;
}

/**
 * Returns the pending writes of one checkpoint. Its steps are in order of commit. For one task and index, the first
 * write counts, except in special channels, where the last one does.
 */
export async function writesOf(
  serde: SerializerProtocol,
  steps: readonly StoredStep[],
): Promise<CheckpointPendingWrite[]> {
  const found = new Map<string, Write>();
  for (const stored of steps) {
    const { checkpoint_ns: ns, checkpoint_id: id, task_id = '', task_path = '', writes = [] } = aboutOf(stored.step);
    const values = await loaded<unknown[]>(serde, stored, keyOf(ns, id));
    for (const [i, [index, channel]] of writes.entries()) {
      const place = JSON.stringify([task_id, index]);
      if (index >= 0 && found.has(place)) continue;
      found.set(place, { taskId: task_id, taskPath: task_path, index, channel, value: values[i] });
    }
  }
  const key = ({ taskPath, taskId, index }: Write) => writesSortKey(taskPath, taskId, index);
  const ordered = [...found.values()].sort((one, other) => compareWritesSortKeys(key(one), key(other)));
  return ordered.map(({ taskId, channel, value }) => [taskId, channel, value]);
}
