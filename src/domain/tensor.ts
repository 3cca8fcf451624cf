/**
 * Types of the items of tensors, as NumPy's array interface writes them: byte order, kind, and bytes per item; for U,
 * characters of four bytes. Times (M and m) may have a unit. Objects and records are left out: their bytes have no
 * meaning for others.
 */
const DTYPE =
  /^(?:\|b1|\|[iu]1|[<>][iu][248]|[<>]f(?:2|4|8|16)|[<>]c(?:8|16|32)|(?:\|S|[<>]U)(?:0|[1-9]\d{0,6})|[<>][mM]8(?:\[(?:[1-9]\d{0,7})?(?:[YMWDhms]|[munpfa]s)\])?)$/u;

/** Returns the bytes of one item. Undefined: tensors cannot have the type. */
export function itemBytes(dtype: string): number | undefined {
  if (!DTYPE.test(dtype)) return undefined;
  const size = Number.parseInt(dtype.slice(2), 10);
  return dtype[1] === 'U' ? 4 * size : size;
}

/** Returns the bytes of all items. The dimensions must not be negative; large products are not exact. */
export function tensorBytes(bytesOfItem: number, shape: readonly number[]): number {
  return shape.reduce((bytes, length) => bytes * length, bytesOfItem);
}
