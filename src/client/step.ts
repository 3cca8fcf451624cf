import { createHash } from 'node:crypto';
import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { type Timestamp, timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError } from '@connectrpc/connect';
import {
  type ActionSchema,
  type Content,
  type ObservationSchema,
  type Step,
  StepSchema,
  type StepStateSchema,
} from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { ERROR_DOMAIN } from './errors.ts';

/** What the agent did: `{ type: 'tool_call', name: 'move', callId: '1', content: { json: '{"x":1}' } }`. */
export type ActionInit = MessageInitShape<typeof ActionSchema>;

/** What came back: `{ type: 'text', content: { text: 'ok' } }`. */
export type ObservationInit = MessageInitShape<typeof ObservationSchema>;

/** A state of a step: its bytes, or bytes with a media type, or the digest of a state put before. */
export type StateInit =
  | Uint8Array
  | {
      readonly data?: Uint8Array | undefined;
      readonly digest?: string | undefined;
      readonly mediaType?: string | undefined;
    };

/**
 * One step, without its number: the writer gives it the next one. Everything is optional.
 *
 *     { actions: [{ type: 'key', content: { text: 'left' } }], reward: 1, states: { env: bytes } }
 *
 * A `Step` read from a server may be given as it is.
 */
export interface StepInit {
  /** If given, it must be the number that the writer is about to give; a program's own check. */
  readonly stepNumber?: bigint | undefined;
  readonly actions?: readonly ActionInit[] | undefined;
  readonly observations?: readonly ObservationInit[] | undefined;
  /** Missing is not 0; NaN and infinities are kept. */
  readonly reward?: number | undefined;
  readonly terminated?: boolean | undefined;
  readonly truncated?: boolean | undefined;
  /** The environment's info; stored as `JSON.stringify(info)`. Give `infoJson` instead for exact text. */
  readonly info?: unknown;
  readonly infoJson?: string | undefined;
  /** Anything else; stored as `JSON.stringify(metadata)`. Give `metadataJson` instead for exact text. */
  readonly metadata?: unknown;
  readonly metadataJson?: string | undefined;
  readonly metrics?: Readonly<Record<string, number>> | undefined;
  readonly startTime?: Date | Timestamp | undefined;
  readonly endTime?: Date | Timestamp | undefined;
  /** By name: `{ env: bytes, agent: { data, mediaType: 'application/json' } }`; or as a list, as in the proto. */
  readonly states?:
    | Readonly<Record<string, StateInit>>
    | readonly MessageInitShape<typeof StepStateSchema>[]
    | undefined;
}

/** Bytes that must be on the server before the step that names them. */
export interface Upload {
  readonly digest: string;
  readonly bytes: Uint8Array;
}

/** A step as it goes on the wire, first and every later time: what the caller changes afterwards cannot change a replay. */
export interface EncodedStep {
  /** Field `steps` of AppendStepsRequest: length and message, without the tag. */
  readonly bytes: Uint8Array;
  readonly uploads: readonly Upload[];
}

/** Larger bytes are put as a state of their own; the server takes no larger one inline. */
const INLINE_MAX_BYTES = 512 * 1024;
/** Largest encoded step, so that it can be sent back in one message. */
const STEP_MAX_BYTES = 1024 * 1024 - 4 * 1024;
/** Below this, putting bytes as a state saves next to nothing: the digest needs a place too. */
const UPLOAD_MIN_BYTES = 1024;

/**
 * Copies the step out of the caller's hands. Throws if it cannot be sent: wrong number, no JSON, or too large even with its
 * bytes put apart.
 */
export function encodeStep(init: StepInit, stepNumber: bigint): EncodedStep {
  if (init.stepNumber !== undefined && init.stepNumber !== stepNumber) {
    throw invalid(`stepNumber ${init.stepNumber} is not the next one: this writer gives ${stepNumber}; leave it out`);
  }
  const step = toStep(init, stepNumber);
  if (!holdsLargeBytes(step)) {
    const bytes = wire(step);
    if (messageSize(bytes) <= STEP_MAX_BYTES) return { bytes, uploads: [] };
  }
  return encodeApart(copyPlaces(step));
}

/** Puts bytes apart, the largest first, until the rest fits. Changes the step, which must be a copy. */
function encodeApart(step: Step): EncodedStep {
  const blobs = blobsOf(step);
  const uploads: Upload[] = [];
  while ((blobs[0]?.bytes.byteLength ?? 0) > INLINE_MAX_BYTES) uploads.push(detach(blobs.shift()!));
  let bytes = wire(step);
  while (messageSize(bytes) > STEP_MAX_BYTES && (blobs[0]?.bytes.byteLength ?? 0) >= UPLOAD_MIN_BYTES) {
    uploads.push(detach(blobs.shift()!));
    bytes = wire(step);
  }
  if (messageSize(bytes) > STEP_MAX_BYTES) throw tooLarge(step.stepNumber, messageSize(bytes));
  return { bytes, uploads };
}

function toStep(init: StepInit, stepNumber: bigint): Step {
  const step = create(StepSchema, {
    stepNumber,
    actions: [...(init.actions ?? [])],
    observations: [...(init.observations ?? [])],
    terminated: init.terminated ?? false,
    truncated: init.truncated ?? false,
    infoJson: jsonText('info', init.info, init.infoJson),
    metadataJson: jsonText('metadata', init.metadata, init.metadataJson),
    metrics: { ...init.metrics },
    states: statesOf(init.states ?? []),
  });
  step.reward = init.reward;
  step.startTime = timestamp('startTime', init.startTime);
  step.endTime = timestamp('endTime', init.endTime);
  return step;
}

function statesOf(states: NonNullable<StepInit['states']>): MessageInitShape<typeof StepStateSchema>[] {
  if (isList(states)) return [...states];
  return Object.entries(states).map(([name, state]) => {
    if (state instanceof Uint8Array) return { name, data: state };
    const { data, digest = '', mediaType = '' } = state;
    return data === undefined ? { name, digest, mediaType } : { name, data, digest, mediaType };
  });
}

function isList<T>(value: object | readonly T[]): value is readonly T[] {
  return Array.isArray(value);
}

function jsonText(field: string, value: unknown, text: string | undefined): string {
  if (value === undefined) return text ?? '';
  if (text !== undefined && text !== '') throw invalid(`${field} and ${field}Json are both given: give one`);
  let written: string | undefined;
  try {
    written = JSON.stringify(value);
  } catch (cause) {
    throw invalid(`${field} cannot be written as JSON: ${cause instanceof Error ? cause.message : String(cause)}`);
  }
  if (written === undefined) throw invalid(`${field} cannot be written as JSON: it is a ${typeof value}`);
  return written;
}

function timestamp(field: string, time: Date | Timestamp | undefined): Timestamp | undefined {
  if (!(time instanceof Date)) return time;
  if (Number.isNaN(time.getTime())) throw invalid(`${field} is an invalid Date`);
  return timestampFromDate(time);
}

/** A place in a step that holds bytes, which a digest can stand for. */
interface Blob {
  readonly bytes: Uint8Array;
  readonly replace: (digest: string) => void;
}

function holdsLargeBytes(step: Step): boolean {
  const large = (bytes: Uint8Array | undefined) => bytes !== undefined && bytes.byteLength > INLINE_MAX_BYTES;
  return (
    step.states.some((state) => large(state.data)) ||
    step.actions.some((action) => large(action.content?.data)) ||
    step.observations.some((observation) => large(observation.content?.data))
  );
}

/** The caller's own messages may be inside; what detach() will change must be ours. The bytes are not copied yet. */
function copyPlaces(step: Step): Step {
  const withContent = <T extends { content?: Content | undefined }>(place: T): T =>
    place.content === undefined ? place : { ...place, content: { ...place.content } };
  return {
    ...step,
    states: step.states.map((state) => ({ ...state })),
    actions: step.actions.map(withContent),
    observations: step.observations.map(withContent),
  };
}

/** Largest first. */
function blobsOf(step: Step): Blob[] {
  const blobs: Blob[] = [];
  for (const state of step.states) {
    if (state.data === undefined) continue;
    blobs.push({
      bytes: state.data,
      replace: (digest) => {
        state.data = undefined;
        state.digest = digest;
      },
    });
  }
  for (const { content } of [...step.actions, ...step.observations]) {
    if (content?.data === undefined) continue;
    blobs.push({
      bytes: content.data,
      replace: (digest) => {
        content.data = undefined;
        content.stateDigest = digest;
      },
    });
  }
  return blobs.sort((one, other) => other.bytes.byteLength - one.bytes.byteLength);
}

function detach(blob: Blob): Upload {
  const upload = { digest: digestOf(blob.bytes), bytes: new Uint8Array(blob.bytes) };
  blob.replace(upload.digest);
  return upload;
}

/** SHA-256, 64 lower-case hex characters: the name of a state. */
export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The frame that holds this step alone is its field with a tag of one byte before. */
function wire(step: Step): Uint8Array {
  return toBinary(AppendStepsRequestSchema, create(AppendStepsRequestSchema, { steps: [step] })).subarray(1);
}

/** Size of the message behind its length prefix. */
function messageSize(field: Uint8Array): number {
  let prefix = 1;
  while (field[prefix - 1]! >= 0x80) prefix += 1;
  return field.byteLength - prefix;
}

function invalid(message: string): ConnectError {
  return new ConnectError(message, Code.InvalidArgument);
}

function tooLarge(stepNumber: bigint, size: number): ConnectError {
  const message =
    `step ${stepNumber} has ${size} bytes encoded, at most ${STEP_MAX_BYTES} are taken: ` +
    'put large text and JSON into content data, a state, or several steps';
  const info = { reason: 'MESSAGE_TOO_LARGE', domain: ERROR_DOMAIN, metadata: { step_number: String(stepNumber) } };
  return new ConnectError(message, Code.ResourceExhausted, undefined, [{ desc: ErrorInfoSchema, value: info }]);
}
