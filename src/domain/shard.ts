/** One of several parts of the trajectories. */
interface Shard {
  readonly index: number;
  readonly count: number;
}

/** Hexadecimal digits at the end of an id that decide on its part. They are random in all usual kinds of UUIDs. */
const DIGITS = 7;

/** RD6: returns whether a trajectory belongs to a part. It belongs to exactly one of `count` parts, always the same. */
export function isInShard(id: string, { index, count }: Shard): boolean {
  return Number.parseInt(id.slice(-DIGITS), 16) % count === index;
}
