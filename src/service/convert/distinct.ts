import { invalidField } from '../../domain/errors.ts';
import { tupleKey } from '../../domain/tuple_key.ts';

/**
 * Requires that no two items have the same values. Ignores items without values. Errors: INVALID_REQUEST for the first
 * item that repeats the values of an earlier one. `[]` in `field` stands for its index.
 */
export function requireDistinct<Item>(
  items: readonly Item[],
  valuesOf: (item: Item) => readonly (string | number | bigint | undefined)[] | undefined,
  field: string,
  description: (item: Item) => string = () => 'must be unique within a request',
): void {
  const seen = new Set<string>();
  for (const [i, item] of items.entries()) {
    const values = valuesOf(item);
    if (values === undefined) continue;
    const key = tupleKey(...values);
    if (seen.has(key)) throw invalidField(field.replace('[]', `[${i}]`), description(item));
    seen.add(key);
  }
}
