const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** `999 B`, `1.5 KiB`, `120 MiB` */
export function bytesText(bytes: bigint): string {
  let value = Number(bytes);
  let unit = 0;
  for (; value >= 999.5 && unit < UNITS.length - 1; unit += 1) value /= 1024;
  const digits = unit > 0 && value < 9.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}
