import type { Action, Observation } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { NumbersPart, NumbersTensor } from '../../../src/domain/numbers/pointer.ts';
import { tensorText } from '../../../src/domain/numbers/tensor.ts';

/** Returns what can have numbers in an action or an observation. */
export function partOf({ type, content }: Action | Observation): NumbersPart {
  return { type, json: content?.json, mediaType: content?.mediaType, tensor: content?.tensor };
}

/** Returns the numbers of a tensor that is stored with its step, at most 4,096, or its type. */
export function textOfTensor({ dtype, shape, data }: NumbersTensor): string {
  return (data && tensorText({ dtype, shape }, data)) ?? `${dtype} [${shape.join(', ')}]`;
}
