import { type Instant, instantFromParts, isInstant } from '../instant.ts';
import type { Action, Content, Observation, StateRef, Step, Tensor } from '../step.ts';
import { DamagedStep } from './damaged_step.ts';
import { ACTION, CONTENT, ENTRY, LABEL, LABELS_TAIL, OBSERVATION, STATE, STEP, TENSOR, TIMESTAMP } from './tags.ts';
import { WireReader } from './wire_reader.ts';

/**
 * Reads the step that `writeStep` wrote to bytes [from, to). The view BASIC returns actions, observations, infoJson and
 * metadataJson empty, and does not decode them. The bytes of contents are views of `bytes`. Errors: DamagedStep.
 */
export function readStep(bytes: Uint8Array, from: number, to: number, view: 'BASIC' | 'FULL' = 'FULL'): Step {
  const input = new WireReader(bytes, from, to);
  const isFull = view === 'FULL';
  const stepNumber = input.has(STEP.stepNumber) ? input.long() : 0n;
  const actions: readonly Action[] = isFull ? readList(input, STEP.actions, readAction) : skipAll(input, STEP.actions);
  const observations: readonly Observation[] = isFull
    ? readList(input, STEP.observations, readObservation)
    : skipAll(input, STEP.observations);
  const reward = input.has(STEP.reward) ? input.double() : undefined;
  const terminated = input.has(STEP.terminated) && input.flag();
  const truncated = input.has(STEP.truncated) && input.flag();
  const infoJson = isFull ? readText(input, STEP.infoJson) : skipText(input, STEP.infoJson);
  const metadataJson = isFull ? readText(input, STEP.metadataJson) : skipText(input, STEP.metadataJson);
  const metrics = readMetrics(input);
  const startTime = input.has(STEP.startTime) ? readTime(input) : undefined;
  const endTime = input.has(STEP.endTime) ? readTime(input) : undefined;
  const states = readList(input, STEP.states, readState);
  const labels = readLabels(input);
  input.finish();
  return {
    stepNumber,
    actions,
    observations,
    reward,
    terminated,
    truncated,
    infoJson,
    metadataJson,
    metrics,
    startTime,
    endTime,
    states,
    labels,
  };
}

/** Reads only the states of a step. Errors: DamagedStep. */
export function readStates(bytes: Uint8Array, from: number, to: number): readonly StateRef[] {
  const input = new WireReader(bytes, from, to);
  if (input.has(STEP.stepNumber)) input.long();
  skipAll(input, STEP.actions);
  skipAll(input, STEP.observations);
  if (input.has(STEP.reward)) input.double();
  if (input.has(STEP.terminated)) input.flag();
  if (input.has(STEP.truncated)) input.flag();
  for (const tag of [STEP.infoJson, STEP.metadataJson]) skipText(input, tag);
  for (const tag of [STEP.metrics, STEP.startTime, STEP.endTime]) skipAll(input, tag);
  const states = readList(input, STEP.states, readState);
  readLabels(input);
  input.finish();
  return states;
}

const NONE: readonly never[] = [];
const NO_METRICS: ReadonlyMap<string, number> = new Map();
const NO_LABELS: ReadonlyMap<string, string> = new Map();
const NOT_PRUNED = {};
const NOT_ATTACHED = {};

function readList<T>(input: WireReader, tag: number, read: (input: WireReader) => T): readonly T[] {
  if (!input.has(tag)) return NONE;
  const list = [read(input)];
  while (input.has(tag)) list.push(read(input));
  return list;
}

function skipAll(input: WireReader, tag: number): readonly never[] {
  while (input.has(tag)) input.skip();
  return NONE;
}

function readText(input: WireReader, tag: number): string {
  return input.has(tag) ? input.text() : '';
}

function skipText(input: WireReader, tag: number): string {
  if (input.has(tag)) input.skip();
  return '';
}

function readAction(input: WireReader): Action {
  const outer = input.enter();
  const action: Action = {
    type: readText(input, ACTION.type),
    name: readText(input, ACTION.name),
    callId: readText(input, ACTION.callId),
    content: input.has(ACTION.content) ? readContent(input) : undefined,
    tokenIds: input.has(ACTION.tokenIds) ? input.packedInts() : NONE,
    logprobs: input.has(ACTION.logprobs) ? input.packedFloats() : NONE,
    promptTokenIds: input.has(ACTION.promptTokenIds) ? input.packedInts() : NONE,
    keptTokens: input.has(ACTION.keptTokens) ? readCount(input) : undefined,
    tokenIdsState: input.has(ACTION.tokenIdsState) ? digestHere(input) : undefined,
    promptTokenIdsState: input.has(ACTION.promptTokenIdsState) ? digestHere(input) : undefined,
  };
  input.leave(outer);
  return action;
}

function readObservation(input: WireReader): Observation {
  const outer = input.enter();
  const observation: Observation = {
    type: readText(input, OBSERVATION.type),
    callId: readText(input, OBSERVATION.callId),
    isError: input.has(OBSERVATION.isError) && input.flag(),
    content: input.has(OBSERVATION.content) ? readContent(input) : undefined,
  };
  input.leave(outer);
  return observation;
}

function readContent(input: WireReader): Content {
  const outer = input.enter();
  const content = readForm(input);
  input.leave(outer);
  return content;
}

function readForm(input: WireReader): Content {
  if (input.has(CONTENT.text)) return { kind: 'text', text: input.text() };
  if (input.has(CONTENT.json)) {
    return { kind: 'json', json: input.text(), mediaType: readText(input, CONTENT.mediaType) };
  }
  if (input.has(CONTENT.data)) {
    return { kind: 'data', data: input.bytes(), mediaType: readText(input, CONTENT.mediaType) };
  }
  if (input.has(CONTENT.uri)) {
    return { kind: 'uri', uri: input.text(), mediaType: readText(input, CONTENT.mediaType) };
  }
  if (input.has(CONTENT.tensor)) return readTensor(input);
  return {
    kind: 'state',
    digest: readDigest(input, CONTENT.stateDigest),
    mediaType: readText(input, CONTENT.mediaType),
    size: input.has(CONTENT.size) ? input.unsigned() : 0,
    ...(input.has(CONTENT.prunedTime) ? { prunedTime: readTime(input) } : NOT_PRUNED),
  };
}

function readTensor(input: WireReader): Tensor {
  const outer = input.enter();
  input.expect(TENSOR.dtype);
  const dtype = input.text();
  const shape = input.has(TENSOR.shape) ? input.packedInts() : NONE;
  const items = input.has(TENSOR.data) ? { data: input.bytes() } : { digest: readDigest(input, TENSOR.stateDigest) };
  input.leave(outer);
  return { kind: 'tensor', dtype, shape, ...items };
}

function readMetrics(input: WireReader): ReadonlyMap<string, number> {
  if (!input.has(STEP.metrics)) return NO_METRICS;
  const metrics = new Map<string, number>();
  do {
    const outer = input.enter();
    input.expect(ENTRY.key);
    const key = input.text();
    if (metrics.has(key)) throw new DamagedStep('a metric has a repeated key');
    input.expect(ENTRY.value);
    metrics.set(key, input.double());
    input.leave(outer);
  } while (input.has(STEP.metrics));
  return metrics;
}

function readLabels(input: WireReader): ReadonlyMap<string, string> {
  if (!input.has(STEP.labels)) return NO_LABELS;
  const labels = new Map<string, string>();
  do {
    input.expect(LABELS_TAIL);
    const outer = input.enter();
    input.expect(LABEL.key);
    const key = input.text();
    if (labels.has(key)) throw new DamagedStep('a label has a repeated key');
    input.expect(LABEL.value);
    labels.set(key, input.text());
    input.leave(outer);
  } while (input.has(STEP.labels));
  return labels;
}

function readTime(input: WireReader): Instant {
  const outer = input.enter();
  const seconds = input.has(TIMESTAMP.seconds) ? input.signed() : 0;
  const nanos = input.has(TIMESTAMP.nanos) ? input.unsigned() : 0;
  input.leave(outer);
  if (!isInstant(seconds, nanos)) throw new DamagedStep('a time is out of range');
  return instantFromParts(BigInt(seconds), nanos);
}

function readState(input: WireReader): StateRef {
  const outer = input.enter();
  const state: StateRef = {
    name: readText(input, STATE.name),
    digest: readDigest(input, STATE.digest),
    mediaType: readText(input, STATE.mediaType),
    size: input.has(STATE.size) ? input.unsigned() : 0,
    ...(input.has(STATE.prunedTime) ? { prunedTime: readTime(input) } : NOT_PRUNED),
    ...(input.has(STATE.attachTime) ? { attachTime: readTime(input) } : NOT_ATTACHED),
  };
  input.leave(outer);
  return state;
}

/** An int32 of at least 0. */
function readCount(input: WireReader): number {
  const count = input.int();
  if (count < 0) throw new DamagedStep('a count is negative');
  return count;
}

function readDigest(input: WireReader, tag: number): string {
  input.expect(tag);
  return digestHere(input);
}

function digestHere(input: WireReader): string {
  const digest = input.text();
  if (digest.length !== DIGEST_LENGTH) throw new DamagedStep('a digest has another length');
  return digest;
}

const DIGEST_LENGTH = 64;
