import { parseTagName } from '../../domain/ids.ts';
import { required } from './required.ts';

/** A step by its number, or by a tag of the trajectory. */
export type StepReference = { readonly stepNumber: bigint } | { readonly tag: string };

export function toStepReference(
  request: { readonly stepNumber?: bigint | undefined; readonly tag?: string | undefined },
  path = '',
): StepReference {
  if (request.tag !== undefined) return { tag: parseTagName(request.tag, `${path}tag`) };
  return { stepNumber: required(request.stepNumber, `${path}step_number`) };
}
