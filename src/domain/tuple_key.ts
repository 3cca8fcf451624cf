/**
 * Returns a key for maps and sets that represents a tuple of values. Different tuples have different keys: texts are
 * written as JSON strings, so a separator within a text differs from one between values. A number and the bigint of the
 * same value are equal.
 */
export function tupleKey(...values: readonly (string | number | bigint | undefined)[]): string {
  return values.map((value) => (typeof value === 'string' ? JSON.stringify(value) : `${value}`)).join();
}
