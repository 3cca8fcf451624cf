import { invalidField } from '../../domain/errors.ts';

/** A step, by its number or by a tag. */
export function placeOf(request: { readonly stepNumber?: bigint | undefined; readonly tag?: string | undefined }) {
  if (request.tag !== undefined) return { tag: request.tag };
  return { stepNumber: required(request.stepNumber, 'step_number') };
}

/** The proto's rules say that it is there; types do not know them. */
export function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw invalidField(field, 'must be set');
  return value;
}
