/**
 * Tags of `anabranch.v1`, trajectory.proto: field number × 8 + wire type. All but that of `Step.labels` are below 128,
 * so each is one byte. A test compares the bytes with protobuf-es.
 */
export const STEP = {
  stepNumber: 0x08,
  actions: 0x12,
  observations: 0x1a,
  reward: 0x21,
  terminated: 0x28,
  truncated: 0x30,
  infoJson: 0x3a,
  metadataJson: 0x42,
  metrics: 0x4a,
  startTime: 0x52,
  endTime: 0x5a,
  states: 0x62,
  commitTime: 0x6a,
  writerEpoch: 0x70,
  rewardSum: 0x79,
  /** The first byte of the tag. `LABELS_TAIL` is the second one. */
  labels: 0x82,
} as const;
export const LABELS_TAIL = 0x01;
export const LABEL = { key: 0x0a, value: 0x12 } as const;
/** Requests with steps: AppendStepsRequest, AppendStepRequest, AppendBatchRequest and its AppendEntry. */
export const FRAME = { steps: 0x12 } as const;
export const STEP_REQUEST = { trajectoryId: 0x0a, uid: 0x12, writerEpoch: 0x18, step: 0x22 } as const;
export const BATCH = { entries: 0x0a } as const;
export const APPEND_ENTRY = { trajectoryId: 0x0a, uid: 0x12, writerEpoch: 0x18, steps: 0x3a } as const;
/** Responses that return encoded steps: of ReadSteps, ReadRollouts and ReadTrajectories. */
export const RESPONSE = { steps: 0x12 } as const;
export const ENTRY = { key: 0x0a, value: 0x11 } as const;
export const ACTION = {
  type: 0x0a,
  name: 0x12,
  callId: 0x1a,
  content: 0x22,
  tokenIds: 0x2a,
  logprobs: 0x32,
  promptTokenIds: 0x3a,
  keptTokens: 0x40,
  tokenIdsState: 0x4a,
  promptTokenIdsState: 0x52,
} as const;
export const OBSERVATION = { type: 0x0a, callId: 0x12, isError: 0x18, content: 0x22 } as const;
export const CONTENT = {
  text: 0x0a,
  json: 0x12,
  data: 0x1a,
  stateDigest: 0x22,
  uri: 0x2a,
  mediaType: 0x32,
  size: 0x38,
  tensor: 0x42,
  prunedTime: 0x4a,
} as const;
export const TENSOR = { dtype: 0x0a, shape: 0x12, data: 0x1a, stateDigest: 0x22 } as const;
/** `data` is never stored with a step. */
export const STATE = {
  name: 0x0a,
  data: 0x12,
  digest: 0x1a,
  mediaType: 0x22,
  size: 0x28,
  prunedTime: 0x32,
  attachTime: 0x3a,
} as const;
export const TIMESTAMP = { seconds: 0x08, nanos: 0x10 } as const;
