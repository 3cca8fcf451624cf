/** Returns about `wanted` round numbers within the range: multiples of 1, 2 or 5 times a power of ten. */
export function ticks(low: number, high: number, wanted: number): number[] {
  const step = tickStep(low, high, wanted);
  if (!(step > 0) || !Number.isFinite(step)) return [low];
  const found: number[] = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && found.length < 100; at += 1) {
    found.push(Number((at * step).toPrecision(12)) + 0);
  }
  return found;
}

function tickStep(low: number, high: number, wanted: number): number {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const times = rough / power;
  return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

/** Maps a range of values linearly to a range of pixels. */
export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly from: number;
  readonly to: number;
}

export function pixel({ low, high, from, to }: Scale, value: number): number {
  return high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from);
}

export function valueOfPixel({ low, high, from, to }: Scale, at: number): number {
  return to === from ? low : low + ((at - from) / (to - from)) * (high - low);
}
