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
import type { Limits } from './limits.ts';

/** An action of the agent: `{ type: 'tool_call', name: 'move', callId: '1', content: { json: '{"x":1}' } }`. */
export type ActionInit = MessageInitShape<typeof ActionSchema>;

/** An observation from the environment: `{ type: 'text', content: { text: 'ok' } }`. */
export type ObservationInit = MessageInitShape<typeof ObservationSchema>;

/** A state of a step: its bytes, its bytes with a media type, or the digest of an uploaded state. */
export type StateInit =
  | Uint8Array
  | {
      readonly data?: Uint8Array | undefined;
      readonly digest?: string | undefined;
      readonly mediaType?: string | undefined;
    };

/**
 * One step without its number: the writer assigns the next number. All fields are optional.
 *
 *     { actions: [{ type: 'key', content: { text: 'left' } }], reward: 1, states: { env: bytes } }
 *
 * A `Step` that was read from a server is also accepted.
 */
export interface StepInit {
  /** Optional check: if set, it must be the number that the writer assigns next. */
  readonly stepNumber?: bigint | undefined;
  readonly actions?: readonly ActionInit[] | undefined;
  readonly observations?: readonly ObservationInit[] | undefined;
  /** Unset differs from 0. NaN and infinities are kept. */
  readonly reward?: number | undefined;
  readonly terminated?: boolean | undefined;
  readonly truncated?: boolean | undefined;
  /** The environment's info, stored as `JSON.stringify(info)`. Use `infoJson` to store exact text. */
  readonly info?: unknown;
  readonly infoJson?: string | undefined;
  /** Other data, stored as `JSON.stringify(metadata)`. Use `metadataJson` to store exact text. */
  readonly metadata?: unknown;
  readonly metadataJson?: string | undefined;
  readonly metrics?: Readonly<Record<string, number>> | undefined;
  /** Key-value pairs that ListSteps can filter by. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
  readonly startTime?: Date | Timestamp | undefined;
  readonly endTime?: Date | Timestamp | undefined;
  /**
   * States by name: `{ env: bytes, agent: { data, mediaType: 'application/json' } }`. A list, as in the proto, is also
   * accepted.
   */
  readonly states?:
    | Readonly<Record<string, StateInit>>
    | readonly MessageInitShape<typeof StepStateSchema>[]
    | undefined;
}

/** Bytes that must be on the server before the step that refers to them. */
export interface Upload {
  readonly digest: string;
  /** Digest of an earlier upload that may have many of the same bytes. */
  readonly baseDigest?: string | undefined;
  readonly bytes: Uint8Array;
}

/** An encoded step. Every replay sends these bytes, so later changes of the caller's objects have no effect. */
export interface EncodedStep {
  /** Field `steps` of AppendStepsRequest without its tag: length and message. */
  readonly bytes: Uint8Array;
  readonly uploads: readonly Upload[];
}

/** Bytes above `inlineStateBytes` are uploaded as states. An encoded step has at most `stepBytes`. */
type StepLimits = Pick<Limits, 'inlineStateBytes' | 'stepBytes'>;

/** Smaller bytes stay inline, because the digest that replaces them takes space too. */
const UPLOAD_MIN_BYTES = 1024;

/**
 * Copies and encodes a step. Throws INVALID_ARGUMENT if the number is wrong or a value is not JSON. Throws
 * MESSAGE_TOO_LARGE if the step is too large even with its bytes uploaded separately.
 */
export function encodeStep(init: StepInit, stepNumber: bigint, limits: StepLimits): EncodedStep {
  if (init.stepNumber !== undefined && init.stepNumber !== stepNumber) {
    throw invalid(`stepNumber is ${init.stepNumber}: expected ${stepNumber}, the next step; you can leave it unset`);
  }
  const step = toStep(init, stepNumber);
  if (!holdsLargeBytes(step, limits.inlineStateBytes)) {
    const bytes = wire(step);
    if (messageSize(bytes) <= limits.stepBytes) return { bytes, uploads: [] };
  }
  return encodeApart(copyContainers(step), limits);
}

/**
 * Moves bytes out of the step into uploads, the largest first, until the rest fits. Changes the step, which must be a
 * copy.
 */
function encodeApart(step: Step, { inlineStateBytes, stepBytes }: StepLimits): EncodedStep {
  const blobs = blobsOf(step);
  const uploads: Upload[] = [];
  while ((blobs[0]?.bytes.byteLength ?? 0) > inlineStateBytes) uploads.push(detach(blobs.shift()!));
  let bytes = wire(step);
  while (messageSize(bytes) > stepBytes && (blobs[0]?.bytes.byteLength ?? 0) >= UPLOAD_MIN_BYTES) {
    uploads.push(detach(blobs.shift()!));
    bytes = wire(step);
  }
  if (messageSize(bytes) > stepBytes) throw tooLarge(step.stepNumber, messageSize(bytes), stepBytes);
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
    labels: { ...init.labels },
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
  if (text !== undefined && text !== '') throw invalid(`${field} and ${field}Json are both set: set only one`);
  let written: string | undefined;
  try {
    written = JSON.stringify(value);
  } catch (cause) {
    throw invalid(`${field} cannot be encoded as JSON: ${cause instanceof Error ? cause.message : String(cause)}`);
  }
  if (written === undefined) throw invalid(`${field} cannot be encoded as JSON: it is a ${typeof value}`);
  return written;
}

function timestamp(field: string, time: Date | Timestamp | undefined): Timestamp | undefined {
  if (!(time instanceof Date)) return time;
  if (Number.isNaN(time.getTime())) throw invalid(`${field} is an invalid Date: expected a valid one, or none`);
  return timestampFromDate(time);
}

/** Bytes within a step that a digest can replace. */
interface Blob {
  readonly bytes: Uint8Array;
  readonly replace: (digest: string) => void;
}

function holdsLargeBytes(step: Step, inlineBytes: number): boolean {
  const large = (bytes: Uint8Array | undefined) => bytes !== undefined && bytes.byteLength > inlineBytes;
  return (
    step.states.some((state) => large(state.data)) ||
    [...step.actions, ...step.observations].some(({ content }) => large(content?.data) || large(content?.tensor?.data))
  );
}

/** Copies the messages that detach() changes, because they may be the caller's own. Does not copy their bytes. */
function copyContainers(step: Step): Step {
  const withContent = <T extends { content?: Content | undefined }>(container: T): T =>
    container.content === undefined ? container : { ...container, content: copyContent(container.content) };
  return {
    ...step,
    states: step.states.map((state) => ({ ...state })),
    actions: step.actions.map(withContent),
    observations: step.observations.map(withContent),
  };
}

function copyContent(content: Content): Content {
  return content.tensor === undefined ? { ...content } : { ...content, tensor: { ...content.tensor } };
}

/** Returns all replaceable bytes of a step, the largest first. */
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
    const holder = content?.tensor ?? content;
    if (holder?.data === undefined) continue;
    blobs.push({
      bytes: holder.data,
      replace: (digest) => {
        holder.data = undefined;
        holder.stateDigest = digest;
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

/** Returns the name of a state: the SHA-256 of its bytes, as 64 lower-case hex characters. */
export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Encodes a frame with only this step, and removes the field's tag of one byte. */
function wire(step: Step): Uint8Array {
  return toBinary(AppendStepsRequestSchema, create(AppendStepsRequestSchema, { steps: [step] })).subarray(1);
}

/** Returns the size of the message behind its length prefix. */
function messageSize(field: Uint8Array): number {
  let prefix = 1;
  while (field[prefix - 1]! >= 0x80) prefix += 1;
  return field.byteLength - prefix;
}

function invalid(message: string): ConnectError {
  return new ConnectError(message, Code.InvalidArgument);
}

function tooLarge(stepNumber: bigint, size: number, stepBytes: number): ConnectError {
  const message =
    `step ${stepNumber} has ${size} bytes when encoded: expected at most ${stepBytes}; ` +
    'move large text and JSON into content data, a state, or several steps';
  const info = { reason: 'MESSAGE_TOO_LARGE', domain: ERROR_DOMAIN, metadata: { step_number: String(stepNumber) } };
  return new ConnectError(message, Code.ResourceExhausted, undefined, [{ desc: ErrorInfoSchema, value: info }]);
}
