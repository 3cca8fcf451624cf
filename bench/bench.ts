import { percentile } from './programs/program.ts';
import type { BenchResources } from './resources.ts';

export type Engine = 'sqlite' | 'postgres';

/** A measurement of the bench, and the names of its results. */
export interface Bench {
  readonly names: readonly string[];
  readonly about: string;
  readonly engines: readonly Engine[];
  /** The bench takes long or compares with other systems. It runs only when it is named. */
  readonly onlyWhenNamed?: boolean;
  run(run: Run): Promise<Result[]>;
}

/** One run of a bench on one engine. */
export interface Run {
  readonly engine: Engine;
  readonly rounds: number;
  readonly warmupSeconds: number;
  /** Seconds of one measurement. */
  readonly seconds: number;
  readonly growthSteps: number;
  /** Steps of the benches of archives, backups and retention. */
  readonly archiveSteps: number;
  /** Points of each series of `metrics-read`. */
  readonly metricPoints: number;
  /** Size of the data of the page's benches: 1 as aimed at, less for a quick try. */
  readonly pageScale: number;
  readonly resources: BenchResources;
  /** Shows progress to people. */
  showProgress(what: string): void;
}

export interface Result {
  readonly bench: string;
  readonly engine: Engine;
  readonly value: number;
  readonly unit: string;
  /** The value that the result is compared with. */
  readonly ceiling?: number;
  /** Value divided by ceiling. */
  readonly ratio?: number;
  /** Aim of the ratio, or of the value if there is no ceiling: `>= 0.7`. */
  readonly aim?: string;
  /** Smallest and largest value of the rounds. */
  readonly spread: readonly [number, number];
  readonly ceilingSpread?: readonly [number, number];
  /** Further figures: server CPU, 99th percentile, sizes. */
  readonly note?: string;
}

/** Measures all variants in each round, one after the other, so that other load of the machine affects all of them. */
export async function alternate<Name extends string>(
  run: Run,
  measures: Readonly<Record<Name, (round: number) => Promise<number>>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(measures) as Name[];
  const samples = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<Name, number[]>;
  for (let round = 0; round < run.rounds; round += 1) {
    for (const name of names) {
      run.showProgress(`round ${round + 1} of ${run.rounds}: ${name}`);
      samples[name].push(await measures[name](round));
    }
  }
  return samples;
}

export interface Comparison {
  readonly bench: string;
  readonly unit: string;
  readonly aim?: string;
  readonly note?: string;
}

/** Compares the medians of two measurements. */
export function compare(run: Run, about: Comparison, values: readonly number[], ceilings: readonly number[]): Result {
  const value = median(values);
  const ceiling = median(ceilings);
  return {
    ...about,
    engine: run.engine,
    value,
    ceiling,
    ratio: value / ceiling,
    spread: spread(values),
    ceilingSpread: spread(ceilings),
  };
}

/** Returns the median of one measurement, without a comparison. */
export function figure(run: Run, about: Comparison, values: readonly number[]): Result {
  return { ...about, engine: run.engine, value: median(values), spread: spread(values) };
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  return sorted.length % 2 === 1 ? percentile(sorted, 0.5) : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

function spread(values: readonly number[]): [number, number] {
  return [Math.min(...values), Math.max(...values)];
}
