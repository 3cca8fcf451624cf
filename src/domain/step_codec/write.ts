import { type Instant, instantToParts } from '../instant.ts';
import type { Action, Content, Observation, StateRef, Step, StoredStep, Tensor } from '../step.ts';
import { ACTION, CONTENT, ENTRY, LABEL, LABELS_TAIL, OBSERVATION, STATE, STEP, TENSOR, TIMESTAMP } from './tags.ts';
import type { WireWriter } from './wire_writer.ts';

/** Writes what the client sent of a step, as a message `Step`, with states by digest and size. */
export function writeStep(out: WireWriter, step: Step): void {
  if (step.stepNumber !== 0n) out.long(STEP.stepNumber, step.stepNumber);
  for (const action of step.actions) writeAction(out, action);
  for (const observation of step.observations) writeObservation(out, observation);
  if (step.reward !== undefined) out.double(STEP.reward, step.reward);
  if (step.terminated) out.flag(STEP.terminated);
  if (step.truncated) out.flag(STEP.truncated);
  if (step.infoJson !== '') out.text(STEP.infoJson, step.infoJson);
  if (step.metadataJson !== '') out.text(STEP.metadataJson, step.metadataJson);
  for (const [key, value] of step.metrics) writeMetric(out, key, value);
  if (step.startTime !== undefined) writeTime(out, STEP.startTime, step.startTime);
  if (step.endTime !== undefined) writeTime(out, STEP.endTime, step.endTime);
  for (const state of step.states) writeState(out, state);
  for (const [key, value] of step.labels) writeLabel(out, key, value);
}

/** What the server adds to all steps of a commit. */
export type Commit = Pick<StoredStep, 'commitTime' | 'writerEpoch'>;

/** Writes a stored step as a message `Step`, with the fields that the server sets. */
export function writeStoredStep(out: WireWriter, step: StoredStep): void {
  writeStep(out, step);
  writeCommit(out, step);
  writeRewardSum(out, step.rewardSum);
}

/**
 * Writes fields that the server sets, after those of `writeStep`. Labels have a higher number and come first, so that
 * the stored bytes are sent as they are: parsers accept any order.
 */
export function writeCommit(out: WireWriter, { commitTime, writerEpoch }: Commit): void {
  writeTime(out, STEP.commitTime, commitTime);
  if (writerEpoch !== 0n) out.long(STEP.writerEpoch, writerEpoch);
}

/** Writes the last field of a stored step. */
export function writeRewardSum(out: WireWriter, rewardSum: number): void {
  // A double without presence is left out only if it is +0.
  if (!Object.is(rewardSum, 0)) out.double(STEP.rewardSum, rewardSum);
}

function writeAction(out: WireWriter, action: Action): void {
  const begun = out.begin(STEP.actions);
  if (action.type !== '') out.text(ACTION.type, action.type);
  if (action.name !== '') out.text(ACTION.name, action.name);
  if (action.callId !== '') out.text(ACTION.callId, action.callId);
  if (action.content !== undefined) writeContent(out, ACTION.content, action.content);
  if (action.tokenIds.length > 0) out.packedInts(ACTION.tokenIds, action.tokenIds);
  if (action.logprobs.length > 0) out.packedFloats(ACTION.logprobs, action.logprobs);
  if (action.promptTokenIds.length > 0) out.packedInts(ACTION.promptTokenIds, action.promptTokenIds);
  if (action.keptTokens !== undefined) out.unsigned(ACTION.keptTokens, action.keptTokens);
  if (action.tokenIdsState !== undefined) out.text(ACTION.tokenIdsState, action.tokenIdsState);
  if (action.promptTokenIdsState !== undefined) out.text(ACTION.promptTokenIdsState, action.promptTokenIdsState);
  out.end(begun);
}

function writeObservation(out: WireWriter, observation: Observation): void {
  const begun = out.begin(STEP.observations);
  if (observation.type !== '') out.text(OBSERVATION.type, observation.type);
  if (observation.callId !== '') out.text(OBSERVATION.callId, observation.callId);
  if (observation.isError) out.flag(OBSERVATION.isError);
  if (observation.content !== undefined) writeContent(out, OBSERVATION.content, observation.content);
  out.end(begun);
}

function writeContent(out: WireWriter, tag: number, content: Content): void {
  const begun = out.begin(tag);
  switch (content.kind) {
    case 'text':
      out.text(CONTENT.text, content.text);
      break;
    case 'json':
      out.text(CONTENT.json, content.json);
      break;
    case 'data':
      out.bytes(CONTENT.data, content.data);
      break;
    case 'state':
      out.text(CONTENT.stateDigest, content.digest);
      break;
    case 'uri':
      out.text(CONTENT.uri, content.uri);
      break;
    case 'tensor':
      writeTensor(out, content);
      break;
  }
  if ('mediaType' in content && content.mediaType !== '') out.text(CONTENT.mediaType, content.mediaType);
  if (content.kind === 'state') {
    if (content.size > 0) out.unsigned(CONTENT.size, content.size);
    if (content.prunedTime !== undefined) writeTime(out, CONTENT.prunedTime, content.prunedTime);
  }
  out.end(begun);
}

function writeTensor(out: WireWriter, { dtype, shape, data, digest }: Tensor): void {
  const begun = out.begin(CONTENT.tensor);
  out.text(TENSOR.dtype, dtype);
  if (shape.length > 0) out.packedInts(TENSOR.shape, shape);
  if (data !== undefined) out.bytes(TENSOR.data, data);
  else out.text(TENSOR.stateDigest, digest);
  out.end(begun);
}

function writeMetric(out: WireWriter, key: string, value: number): void {
  const begun = out.begin(STEP.metrics);
  out.text(ENTRY.key, key);
  out.double(ENTRY.value, value);
  out.end(begun);
}

/** Writes one of the states of a step. */
export function writeState(out: WireWriter, state: StateRef): void {
  const { name, digest, mediaType, size, prunedTime, attachTime } = state;
  const begun = out.begin(STEP.states);
  if (name !== '') out.text(STATE.name, name);
  if (digest !== '') out.text(STATE.digest, digest);
  if (mediaType !== '') out.text(STATE.mediaType, mediaType);
  if (size > 0) out.unsigned(STATE.size, size);
  if (prunedTime !== undefined) writeTime(out, STATE.prunedTime, prunedTime);
  if (attachTime !== undefined) writeTime(out, STATE.attachTime, attachTime);
  out.end(begun);
}

function writeLabel(out: WireWriter, key: string, value: string): void {
  out.tag(STEP.labels);
  const begun = out.begin(LABELS_TAIL);
  out.text(LABEL.key, key);
  out.text(LABEL.value, value);
  out.end(begun);
}

function writeTime(out: WireWriter, tag: number, time: Instant): void {
  const { seconds, nanos } = instantToParts(time);
  const begun = out.begin(tag);
  if (seconds !== 0n) out.long(TIMESTAMP.seconds, seconds);
  if (nanos !== 0) out.unsigned(TIMESTAMP.nanos, nanos);
  out.end(begun);
}
