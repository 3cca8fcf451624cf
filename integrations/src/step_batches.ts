import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { type ContentSchema, type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { PatientClient } from './patient_client.ts';

/** A step to append. */
export type NewStep = MessageInitShape<typeof StepSchema>;

type NewContent = MessageInitShape<typeof ContentSchema>;

/** Bytes of the steps of one message. Leaves room for what else the message has. */
const BATCH_BYTES = 896 * 1024;
const BATCH_STEPS = 1000;
/** JSON text of this size or more can become a state. */
const STATE_BYTES = 64 * 1024;

/**
 * Divides steps among messages, in order. Large JSON texts of steps of more than `stepBytes` become states, at most
 * until the step is that small. Throws RangeError if a step is too large for a message nevertheless.
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
      const most = `${BATCH_BYTES} besides JSON of ${STATE_BYTES} bytes or more`;
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

/** Moves the largest JSON texts of a step into states until it is small enough. Returns its size. */
async function fitted(client: PatientClient, step: NewStep, most: number): Promise<number> {
  let size = sizeOf(step);
  if (size <= most) return size;
  const contents = [...(step.actions ?? []), ...(step.observations ?? [])]
    .flatMap(({ content }) => (content?.json === undefined ? [] : [content as NewContent & { json: string }]))
    .filter(({ json }) => json.length >= STATE_BYTES)
    .sort((one, other) => other.json.length - one.json.length);
  for (const content of contents) {
    const digest = await client.upload(new TextEncoder().encode(content.json));
    Object.assign(content, { json: undefined, stateDigest: digest, mediaType: 'application/json' });
    size = sizeOf(step);
    if (size <= most) break;
  }
  return size;
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
