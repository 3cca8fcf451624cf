import { createHash, randomInt } from 'node:crypto';
import process from 'node:process';

/** Random numbers from a seed. Faults depend on real timing, so a seed repeats the choices, not their effects. */
export interface Random {
  readonly seed: number;
  /** At least 0, below 1. */
  next(): number;
  /** A whole number from `from` to `to`, both included. */
  between(from: number, to: number): number;
  pick<T>(from: readonly T[]): T;
}

/** The seed in FAULTS_SEED, else a new one; proofs report it. */
export function seededRandom(seed = Number(process.env.FAULTS_SEED ?? randomInt(2 ** 31))): Random {
  let drawn = 0;
  const next = () => {
    drawn += 1;
    return createHash('sha256').update(`${seed}/${drawn}`).digest().readUInt32BE() / 2 ** 32;
  };
  const between = (from: number, to: number) => from + Math.floor(next() * (to - from + 1));
  return { seed, next, between, pick: (list) => list[between(0, list.length - 1)]! };
}
