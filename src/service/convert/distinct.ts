import { invalidField } from '../../domain/errors.ts';
import { tupleKey } from '../../domain/tuple_key.ts';

/**
 * Errors: INVALID_REQUEST with the field of the first item whose values an earlier item has too. Items without values
 * are not compared.
 */
export function requireDistinct<Item>(
  items: readonly Item[],
  valuesOf: (item: Item) => readonly (string | number | bigint | undefined)[] | undefined,
  fieldOf: (index: number) => string,
  description: string | ((item: Item) => string),
): void {
  const seen = new Set<string>();
  for (const [i, item] of items.entries()) {
    const values = valuesOf(item);
    if (values === undefined) continue;
    const key = tupleKey(...values);
    if (seen.has(key))
      throw invalidField(fieldOf(i), typeof description === 'string' ? description : description(item));
    seen.add(key);
  }
}
