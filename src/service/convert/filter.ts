import { invalidField } from '../../domain/errors.ts';

/** Returns the filters that are set: not undefined, not empty, not false. */
export function setFilters<Filters extends object>(
  filters: Filters,
): { [Name in keyof Filters]?: Exclude<Filters[Name], undefined> } {
  const set = Object.entries(filters).filter(([, value]) => !isUnset(value));
  return Object.fromEntries(set) as { [Name in keyof Filters]?: Exclude<Filters[Name], undefined> };
}

function isUnset(value: unknown): boolean {
  if (value instanceof Map) return value.size === 0;
  return value === undefined || value === '' || value === false || (Array.isArray(value) && value.length === 0);
}

/** Returns a bound for rewards. Errors: INVALID_REQUEST for NaN. */
export function toBound(reward: number | undefined, field: string): number | undefined {
  if (Number.isNaN(reward)) throw invalidField(field, 'must be a number, not NaN: no reward is below or above NaN');
  return reward;
}
