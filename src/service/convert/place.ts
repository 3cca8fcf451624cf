import { invalidField } from '../../domain/errors.ts';
import { parseTagName } from '../../domain/ids.ts';

/** A step, by its number or by a tag of the trajectory. */
export type StepReference = { readonly stepNumber: bigint } | { readonly tag: string };

export function placeOf(request: {
  readonly stepNumber?: bigint | undefined;
  readonly tag?: string | undefined;
}): StepReference {
  if (request.tag !== undefined) return { tag: parseTagName(request.tag, 'tag') };
  return { stepNumber: required(request.stepNumber, 'step_number') };
}

/** Returns a value that the rules of the proto require, which its type does not show. */
export function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw invalidField(field, 'must be set');
  return value;
}
