import { create } from '@bufbuild/protobuf';
import {
  ActionSchema,
  ContentSchema,
  ObservationSchema,
  StepSchema,
  StepStateSchema,
  TensorSchema,
  type Action as WireAction,
  type Content as WireContent,
  type Observation as WireObservation,
  type StepState as WireState,
  type Step as WireStep,
  type Tensor as WireTensor,
} from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Action, Content, Observation, StateRef, StoredStep, Tensor } from '../../domain/step.ts';
import { fromInstant, fromMap } from '../convert/values.ts';

/** Fills empty messages, because `create` with initial values visits every field again, which is slower. */
export function fromStoredStep(step: StoredStep): WireStep {
  const wire = create(StepSchema);
  wire.stepNumber = step.stepNumber;
  for (const action of step.actions) wire.actions.push(fromAction(action));
  for (const observation of step.observations) wire.observations.push(fromObservation(observation));
  if (step.reward !== undefined) wire.reward = step.reward;
  wire.terminated = step.terminated;
  wire.truncated = step.truncated;
  wire.infoJson = step.infoJson;
  wire.metadataJson = step.metadataJson;
  if (step.metrics.size > 0) wire.metrics = fromMap(step.metrics);
  if (step.startTime !== undefined) wire.startTime = fromInstant(step.startTime);
  if (step.endTime !== undefined) wire.endTime = fromInstant(step.endTime);
  for (const state of step.states) wire.states.push(fromStateRef(state));
  if (step.labels.size > 0) wire.labels = fromMap(step.labels);
  wire.commitTime = fromInstant(step.commitTime);
  wire.writerEpoch = step.writerEpoch;
  wire.rewardSum = step.rewardSum;
  return wire;
}

export function fromStateRef({ name, digest, mediaType, size, prunedTime, attachTime }: StateRef): WireState {
  const wire = create(StepStateSchema);
  wire.name = name;
  wire.digest = digest;
  wire.mediaType = mediaType;
  wire.size = BigInt(size);
  if (prunedTime !== undefined) wire.prunedTime = fromInstant(prunedTime);
  if (attachTime !== undefined) wire.attachTime = fromInstant(attachTime);
  return wire;
}

function fromAction(action: Action): WireAction {
  const wire = create(ActionSchema);
  wire.type = action.type;
  wire.name = action.name;
  wire.callId = action.callId;
  if (action.content !== undefined) wire.content = fromContent(action.content);
  if (action.tokenIds.length > 0) wire.tokenIds = [...action.tokenIds];
  if (action.logprobs.length > 0) wire.logprobs = [...action.logprobs];
  if (action.promptTokenIds.length > 0) wire.promptTokenIds = [...action.promptTokenIds];
  if (action.keptTokens !== undefined) wire.keptTokens = action.keptTokens;
  if (action.tokenIdsState !== undefined) wire.tokenIdsState = action.tokenIdsState;
  if (action.promptTokenIdsState !== undefined) wire.promptTokenIdsState = action.promptTokenIdsState;
  return wire;
}

function fromObservation(observation: Observation): WireObservation {
  const wire = create(ObservationSchema);
  wire.type = observation.type;
  wire.callId = observation.callId;
  wire.isError = observation.isError;
  if (observation.content !== undefined) wire.content = fromContent(observation.content);
  return wire;
}

function fromContent(content: Content): WireContent {
  const wire = create(ContentSchema);
  switch (content.kind) {
    case 'text':
      wire.text = content.text;
      return wire;
    case 'json':
      wire.json = content.json;
      wire.mediaType = content.mediaType;
      return wire;
    case 'data':
      wire.data = content.data;
      wire.mediaType = content.mediaType;
      return wire;
    case 'state':
      wire.stateDigest = content.digest;
      wire.mediaType = content.mediaType;
      wire.size = BigInt(content.size);
      if (content.prunedTime !== undefined) wire.prunedTime = fromInstant(content.prunedTime);
      return wire;
    case 'uri':
      wire.uri = content.uri;
      wire.mediaType = content.mediaType;
      return wire;
    case 'tensor':
      wire.tensor = fromTensor(content);
      return wire;
  }
}

function fromTensor({ dtype, shape, data, digest }: Tensor): WireTensor {
  const wire = create(TensorSchema);
  wire.dtype = dtype;
  wire.shape = [...shape];
  if (data !== undefined) wire.data = data;
  if (digest !== undefined) wire.stateDigest = digest;
  return wire;
}
