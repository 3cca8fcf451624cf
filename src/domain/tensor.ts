/**
 * Types of the items of tensors, as NumPy's array interface writes them. Byte order, kind, and bytes per item; for U,
 * characters of four bytes. Left out are types that other languages cannot read (objects, records, long doubles) and
 * times.
 */
const DTYPE = /^(?:\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(?:8|16)|(?:\|S|[<>]U)(?:0|[1-9]\d{0,6}))$/u;

/** Returns the bytes of one item. Undefined: tensors cannot have the type. */
export function itemBytes(dtype: string): number | undefined {
  if (!DTYPE.test(dtype)) return undefined;
  const size = Number(dtype.slice(2));
  return dtype[1] === 'U' ? 4 * size : size;
}

/** Returns the bytes of all items. The dimensions must not be negative; large products are not exact. */
export function tensorBytes(bytesOfItem: number, shape: readonly number[]): number {
  return shape.reduce((bytes, length) => bytes * length, bytesOfItem);
}
