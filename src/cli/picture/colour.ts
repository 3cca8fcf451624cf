/** Colours as every viewer of SVG knows them. */

/** Returns `#rrggbb` for a colour of the page: `#rrggbb`, or a mix of two of these. */
export function plainColour(style: string | object): string {
  const [, one, part, other] = /^color-mix\(in oklab, (#\w{6}) (\d+)%, (#\w{6})\)$/.exec(String(style)) ?? [];
  return one === undefined || other === undefined ? String(style) : mixed(one, other, Number(part) / 100);
}

function mixed(one: string, other: string, part: number): string {
  const [a, b] = [oklabOf(one), oklabOf(other)];
  return hexOf(a.map((value, at) => value * part + (b[at] ?? 0) * (1 - part)));
}

/** Matrices of https://bottosson.github.io/posts/oklab/. */
const TO_CONES = [
  [0.4122214708, 0.5363325363, 0.0514459929],
  [0.2119034982, 0.6806995451, 0.1073969566],
  [0.0883024619, 0.2817188376, 0.6299787005],
];
const TO_LAB = [
  [0.2104542553, 0.793617785, -0.0040720468],
  [1.9779984951, -2.428592205, 0.4505937099],
  [0.0259040371, 0.7827717662, -0.808675766],
];
const FROM_LAB = [
  [1, 0.3963377774, 0.2158037573],
  [1, -0.1055613458, -0.0638541728],
  [1, -0.0894841775, -1.291485548],
];
const FROM_CONES = [
  [4.0767416621, -3.3077115913, 0.2309699292],
  [-1.2684380046, 2.6097574011, -0.3413193965],
  [-0.0041960863, -0.7034186147, 1.707614701],
];

function oklabOf(hex: string): number[] {
  const linear = [1, 3, 5].map((from) => {
    const value = Number.parseInt(hex.slice(from, from + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return times(TO_LAB, times(TO_CONES, linear).map(Math.cbrt));
}

function hexOf(lab: readonly number[]): string {
  const linear = times(
    FROM_CONES,
    times(FROM_LAB, lab).map((value) => value ** 3),
  );
  const bytes = linear.map((value) => {
    const shown = value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055;
    return Math.round(Math.max(0, Math.min(1, shown)) * 255);
  });
  return `#${bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}

function times(matrix: readonly (readonly number[])[], vector: readonly number[]): number[] {
  return matrix.map((row) => row.reduce((sum, factor, at) => sum + factor * (vector[at] ?? 0), 0));
}
