/**
 * Returns a key for maps and sets that stands for a tuple of values. Different tuples have different keys, whatever characters their texts hold: texts are
 * written as JSON strings, so a separator inside a text cannot be confused with one between two values. A number and the bigint of the same value are equal.
 */
export function tupleKey(...values: readonly (string | number | bigint | undefined)[]): string {
  return values.map((value) => (typeof value === 'string' ? JSON.stringify(value) : `${value}`)).join();
}
