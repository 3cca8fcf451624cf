/** Numbers, times and names as people read them. */

const MINUS = '−';

/** Returns a number with at most `digits` significant digits: `−0.0123`, `1.2 M`, `∞`. */
export function number(value: number | undefined, digits = 4): string {
  if (value === undefined) return '–';
  if (Number.isNaN(value)) return 'NaN';
  const sign = value < 0 ? MINUS : '';
  const size = Math.abs(value);
  if (size === Number.POSITIVE_INFINITY) return `${sign}∞`;
  if (size === 0) return '0';
  if (size < 1e-4 || size >= 1e15)
    return `${sign}${size.toExponential(2).replace('e-', `e${MINUS}`).replace('e+', 'e')}`;
  if (size >= 1e6) return `${sign}${count(Number(Number((size / 1e6).toPrecision(digits)).toFixed(3)))} M`;
  if (size >= 10 ** digits) return sign + count(Math.round(size));
  return sign + String(Number(size.toPrecision(digits)));
}

/** Like number(), with a plus sign before positive numbers. */
export function signed(value: number | undefined, digits = 3): string {
  return value !== undefined && value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

/** Returns `1,234`. Loading the locale of `toLocaleString` takes longer than everything else that a view writes. */
export function count(value: number | bigint): string {
  const [whole = '', fraction] = String(value).split('.');
  const grouped = whole.replace(/\B(?=(?:\d{3})+$)/g, ',');
  return fraction === undefined ? grouped : `${grouped}.${fraction}`;
}

/** Returns `1 step`, `2 steps`. */
export function counted(value: number | bigint, noun: string): string {
  return `${count(value)} ${noun}${BigInt(value) === 1n ? '' : 's'}`;
}

const UNITS = [
  [86_400, 'd'],
  [3600, 'h'],
  [60, 'min'],
] as const;

/** Returns seconds in at most two units: `45 s`, `2 h 10 min`. */
export function duration(seconds: number): string {
  for (const [at, [size, unit]] of UNITS.entries()) {
    if (seconds < size) continue;
    const [smaller, smallerUnit] = UNITS[at + 1] ?? [1, 's'];
    const rest = Math.floor((seconds % size) / smaller);
    return `${Math.floor(seconds / size)} ${unit}${rest === 0 ? '' : ` ${rest} ${smallerUnit}`}`;
  }
  return seconds < 10 && seconds % 1 !== 0 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

/** Returns how long ago a time was. A time in the future, from a wrong clock, is given as its date. */
export function ago(time: Date, now: Date): string {
  const seconds = (now.getTime() - time.getTime()) / 1000;
  if (seconds < 0 || seconds > 30 * 86_400) return time.toISOString().slice(0, 10);
  if (seconds < 5) return 'now';
  const [size, unit] = UNITS.find(([each]) => seconds >= each) ?? [1, 's'];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  if (size < 1024 ** 2) return `${number(size / 1024, 3)} KiB`;
  if (size < 1024 ** 3) return `${number(size / 1024 ** 2, 3)} MiB`;
  return `${number(size / 1024 ** 3, 3)} GiB`;
}

/** Returns the name, or the end of the id, which differs between resources that were created together. */
export function nameOf({ id, name }: { readonly id: string; readonly name: string }): string {
  return name === '' ? `…${id.slice(-8)}` : visible(name);
}

/**
 * Controls of direction change how the text around them reads, and lone surrogates cannot be shown: both are replaced
 * by visible characters.
 */
export function visible(text: string): string {
  return text.toWellFormed().replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, '\ufffd');
}
