import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { LIMITS } from '../../gen/es/anabranch/v1/limits.js';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ActionInit, ObservationInit } from '../../src/client/step.ts';
import type { PatientClient } from './patient_client.ts';

/** A step to append. */
export type NewStep = MessageInitShape<typeof StepSchema>;

/** Bytes of the steps of one message. Leaves room for what else the message has. */
const BATCH_BYTES = 896 * 1024;
const BATCH_STEPS = 1000;
/** Parts of this size or more can become states of their own. */
const STATE_BYTES = 64 * 1024;
/** Most bytes of a state that a step has inline. */
const INLINE_BYTES = LIMITS.inlineStateBytes;

/** Most bytes of the parts of a step that are only shown, without those that can be states of their own. */
const SHOWN_BYTES = 256 * 1024;
/** What each of these parts counts besides its text, so that a step has no more parts than it may have. */
const SHOWN_PART_BYTES = SHOWN_BYTES / LIMITS.stepParts;

/** Returns a filter of parts that are only shown. It takes them until a step has no room for more. */
export function roomOfShown(): (part: ActionInit | ObservationInit) => boolean {
  let room = SHOWN_BYTES;
  return ({ content, callId = '' }) => {
    const size = Buffer.byteLength(content?.json ?? content?.text ?? '');
    room -= SHOWN_PART_BYTES + Buffer.byteLength(callId) + (size < STATE_BYTES ? size : 0);
    return room >= 0;
  };
}

/**
 * Divides steps among messages, in order. Large states and JSON texts of steps of more than `stepBytes` are stored
 * first, until the step is that small. Throws RangeError if a step is too large for a message nevertheless.
 */
export async function batchesOf(
  client: PatientClient,
  steps: readonly NewStep[],
  stepBytes = BATCH_BYTES,
): Promise<NewStep[][]> {
  const batches: NewStep[][] = [];
  let room = 0;
  for (const step of steps) {
    const size = await fitted(client, step, stepBytes);
    if (size > BATCH_BYTES) {
      const most = `${BATCH_BYTES} besides states and JSON of ${STATE_BYTES} bytes or more`;
      throw new RangeError(`a step has ${size} bytes: expected at most ${most}`);
    }
    const batch = batches.at(-1);
    if (batch === undefined || size > room || batch.length === BATCH_STEPS) {
      batches.push([step]);
      room = BATCH_BYTES;
    } else batch.push(step);
    room -= size;
  }
  return batches;
}

/** Divides steps that belong together: they are one message if that is possible. */
export function fewestBatchesOf(client: PatientClient, steps: readonly NewStep[]): Promise<NewStep[][]> {
  return batchesOf(client, steps, Math.floor(BATCH_BYTES / Math.max(1, steps.length)));
}

/** A part of a step that can be stored as a state of its own. */
interface Part {
  readonly bytes: Uint8Array;
  readonly replace: (digest: string) => void;
}

/** Moves the largest parts of a step out of it until it is small enough. Returns its size. */
async function fitted(client: PatientClient, step: NewStep, most: number): Promise<number> {
  let size = sizeOf(step);
  if (size <= most && !step.states?.some(({ data }) => (data?.byteLength ?? 0) > INLINE_BYTES)) return size;
  const parts = [...statesOf(step), ...textsOf(step)].filter(({ bytes }) => bytes.byteLength >= STATE_BYTES);
  for (const { bytes, replace } of parts.sort((one, other) => other.bytes.byteLength - one.bytes.byteLength)) {
    if (size <= most && bytes.byteLength <= INLINE_BYTES) break;
    replace(await client.upload(bytes));
    size = sizeOf(step);
  }
  return size;
}

function statesOf({ states = [] }: NewStep): Part[] {
  return states.flatMap((state) => {
    const { data } = state;
    return data === undefined
      ? []
      : [{ bytes: data, replace: (digest) => void Object.assign(state, { data: undefined, digest }) }];
  });
}

function textsOf({ actions = [], observations = [] }: NewStep): Part[] {
  return [...actions, ...observations].flatMap(({ content }) => {
    if (content?.json === undefined) return [];
    const replaced = { json: undefined, mediaType: 'application/json' };
    return [
      {
        bytes: new TextEncoder().encode(content.json),
        replace: (stateDigest) => void Object.assign(content, { ...replaced, stateDigest }),
      },
    ];
  });
}

function sizeOf(step: NewStep): number {
  // The tag and the length of the field.
  return toBinary(StepSchema, create(StepSchema, step)).byteLength + 6;
}

/** Returns the JSON text of a content, wherever it is stored; undefined if there is none. */
export async function jsonOf(
  client: PatientClient,
  content: Step['actions'][number]['content'],
): Promise<string | undefined> {
  if (content?.json !== undefined) return content.json;
  if (content?.stateDigest === undefined || content.mediaType !== 'application/json') return undefined;
  return new TextDecoder().decode(await client.download(content.stateDigest));
}
