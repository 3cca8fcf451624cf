/** The numbers of tensors, for the server, the page and the command line. Needs nothing of Node. */

/** What the bytes of a tensor mean: `dtype` as in NumPy's array interface, and the length of each dimension. */
export interface TensorForm {
  readonly dtype: string;
  readonly shape: readonly number[];
}

/** Numbers of the largest tensor that is shown, searched and addressed by JSON Pointers. */
export const MOST_NUMBERS = 4096;

/** How items are read, and written as text. */
interface Items {
  /** Bytes of one item. */
  readonly bytes: number;
  readonly read: (view: DataView, at: number) => number | bigint | boolean;
  readonly textOf: (item: number | bigint | boolean) => string;
}

/** Returns how items of a dtype are read. Undefined if they are no booleans, integers or floats of at most 64 bits. */
export function itemsOf(dtype: string): Items | undefined {
  const [, order, kind = '', bytes = ''] = /^([<>|])([biuf])(\d)$/.exec(dtype) ?? [];
  const read = READERS[kind + bytes];
  if (read === undefined) return undefined;
  const little = order !== '>';
  return { bytes: Number(bytes), read: (view, at) => read(view, at, little), textOf: TEXTS[kind + bytes] ?? itemText };
}

type Read = (view: DataView, at: number, little: boolean) => number | bigint | boolean;

const READERS: Readonly<Record<string, Read>> = {
  b1: (view, at) => view.getUint8(at) !== 0,
  i1: (view, at) => view.getInt8(at),
  u1: (view, at) => view.getUint8(at),
  i2: (view, at, little) => view.getInt16(at, little),
  u2: (view, at, little) => view.getUint16(at, little),
  i4: (view, at, little) => view.getInt32(at, little),
  u4: (view, at, little) => view.getUint32(at, little),
  i8: (view, at, little) => view.getBigInt64(at, little),
  u8: (view, at, little) => view.getBigUint64(at, little),
  f2: (view, at, little) => half(view.getUint16(at, little)),
  f4: (view, at, little) => view.getFloat32(at, little),
  f8: (view, at, little) => view.getFloat64(at, little),
};

/** Returns the value of a float of 16 bits. */
function half(bits: number): number {
  const sign = bits >= 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (fraction + 1024) * 2 ** (exponent - 25));
}

function itemText(item: number | bigint | boolean): string {
  return Object.is(item, -0) ? '-0' : String(item);
}

/** The shortest digits that mean the same number in the type of the item, as NumPy prints them: `0.1`. */
const TEXTS: Readonly<Record<string, Items['textOf']>> = {
  f2: (item) => shortest(item as number, 3, 5, isSameHalf),
  f4: (item) => shortest(item as number, 6, 9, (digits, value) => Math.fround(digits) === value),
};

function shortest(value: number, least: number, most: number, isSame: (digits: number, value: number) => boolean) {
  for (let precision = least; precision <= most && value !== 0 && Number.isFinite(value); precision += 1) {
    const digits = Number(value.toPrecision(precision));
    if (isSame(digits, value)) return itemText(digits);
  }
  return itemText(value);
}

/** Whether the digits are nearer to a value of 16 bits than to its neighbours. */
function isSameHalf(digits: number, value: number): boolean {
  const size = Math.abs(value);
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  const above = 2 ** (exponent - 11);
  // Below a power of two, the next value is half as far away.
  const below = size === 2 ** exponent && exponent > -14 ? above / 2 : above;
  const difference = Math.abs(digits) - size;
  return difference < above && difference > -below;
}

/**
 * Returns how many bytes a tensor has whose items are numbers or booleans, at most 4,096 of them. Undefined for all
 * other tensors.
 */
export function numbersBytes({ dtype, shape }: TensorForm): number | undefined {
  const items = itemsOf(dtype);
  const count = shape.reduce((product, length) => product * length, 1);
  return items === undefined || count > MOST_NUMBERS ? undefined : count * items.bytes;
}

/** Returns the numbers as nested lists: `[[1,2],[3,4]]`. Undefined for tensors that `numbersBytes` leaves out. */
export function tensorText(form: TensorForm, data: Uint8Array): string | undefined {
  const bytes = numbersBytes(form);
  if (bytes === undefined || data.length !== bytes) return undefined;
  if (bytes === 0) return '[]';
  return listText(form, data, ({ read, textOf }, view, at) => textOf(read(view, at)));
}

/** Returns the items of a tensor of any size as nested lists. `textAt` writes the item that begins at a byte. */
export function listText(
  { dtype, shape }: TensorForm,
  data: Uint8Array,
  textAt: (items: Items, view: DataView, at: number) => string,
): string | undefined {
  const items = itemsOf(dtype);
  if (items === undefined) return undefined;
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let at = 0;
  const list = (dimension: number): string => {
    const length = shape[dimension];
    if (length === undefined) {
      const text = textAt(items, view, at);
      at += items.bytes;
      return text;
    }
    return `[${Array.from({ length }, () => list(dimension + 1)).join(',')}]`;
  };
  return list(0);
}

const INDEX = /^(?:0|[1-9]\d*)$/;

/** Returns the number at a path of indexes, one for each dimension. Undefined if there is none. */
export function tensorNumber(form: TensorForm, data: Uint8Array, path: readonly string[]): number | undefined {
  const { dtype, shape } = form;
  if (!isInTensor(form, path) || data.length !== numbersBytes(form)) return undefined;
  const index = path.reduce((flat, part, dimension) => flat * (shape[dimension] ?? 0) + Number(part), 0);
  const { bytes, read } = itemsOf(dtype)!;
  const item = read(new DataView(data.buffer, data.byteOffset, data.byteLength), index * bytes);
  return typeof item === 'boolean' ? undefined : Number(item);
}

/** Whether a path leads to an item of a tensor of at most 4,096 numbers. */
export function isInTensor(form: TensorForm, path: readonly string[]): boolean {
  const { shape } = form;
  if (path.length !== shape.length || numbersBytes(form) === undefined) return false;
  return path.every((part, dimension) => INDEX.test(part) && Number(part) < (shape[dimension] ?? 0));
}

/** Yields the JSON Pointers of the numbers of a tensor, in order. */
export function* tensorPointers(form: TensorForm): Generator<string, void, undefined> {
  const { dtype, shape } = form;
  if (numbersBytes(form) === undefined || dtype.startsWith('|b')) return;
  const count = shape.reduce((product, length) => product * length, 1);
  for (let item = 0; item < count; item += 1) {
    let rest = item;
    const indexes = shape.toReversed().map((length) => {
      const index = rest % length;
      rest = (rest - index) / length;
      return `/${index}`;
    });
    yield indexes.reverse().join('');
  }
}

/** Media type of the states that Python writes for arrays: `…;dtype=<f4;shape=2,3`. */
const STATE_TYPE = /^application\/vnd\.anabranch\.tensor;dtype=([^;]+);shape=((?:\d+(?:,\d+)*)?)$/;

/** Returns the form of a state that is a tensor, by its media type. Undefined for all other states. */
export function tensorOfState(mediaType: string): TensorForm | undefined {
  const [, dtype, sizes] = STATE_TYPE.exec(mediaType) ?? [];
  if (dtype === undefined || sizes === undefined) return undefined;
  return { dtype, shape: sizes === '' ? [] : sizes.split(',').map(Number) };
}
