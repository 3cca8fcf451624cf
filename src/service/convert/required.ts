import { invalidField } from '../../domain/errors.ts';

/** Returns a value that the rules of the proto require, although its type allows undefined. */
export function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw invalidField(field, 'must be set');
  return value;
}
