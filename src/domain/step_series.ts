import { type BytesOf, type JsonPath, type NumbersPart, numberAt, numberIn } from './numbers/pointer.ts';
import type { Action, Observation, Step } from './step.ts';

/** A value of steps, and how to downsample it. */
export interface SeriesQuery {
  readonly value: StepValue;
  /**
   * At least 8: up to four points for each of two stretches. Stretches begin at multiples of their length, so even a
   * short range can lie in two of them.
   */
  readonly maxPoints: number;
  /** Minimum number of steps of a stretch. */
  readonly stretchSteps: bigint;
}

/** Rewards are stored beside the contents of steps. All other values are read from the contents. */
export type StepValue = { readonly of: 'REWARD_SUM' | 'REWARD' | 'REWARD_MEAN' } | ContentValue;

export type ContentValue =
  | { readonly of: 'METRIC'; readonly key: string }
  | { readonly of: 'ACTION' | 'OBSERVATION' | 'INFO'; readonly path: JsonPath };

/** Points of a downsampled series, in order of step. */
export interface StepSeries {
  readonly stepNumbers: readonly bigint[];
  readonly values: readonly number[];
  readonly stretchSteps: bigint;
}

/** Returns the value of a step's content. `bytesOf` has the states in which the items of tensors are. */
export function contentValue(step: Step, value: ContentValue, bytesOf: BytesOf): number | undefined {
  switch (value.of) {
    case 'METRIC':
      return step.metrics.get(value.key);
    case 'ACTION':
      return numberIn(step.actions.map(numbersPart), value.path, bytesOf);
    case 'OBSERVATION':
      return numberIn(step.observations.map(numbersPart), value.path, bytesOf);
    case 'INFO':
      return step.infoJson === '' ? undefined : numberAt(step.infoJson, value.path);
  }
}

function numbersPart({ type, content }: Action | Observation): NumbersPart {
  if (content?.kind === 'json') return { type, json: content.json, mediaType: content.mediaType };
  if (content?.kind !== 'tensor') return { type };
  const { dtype, shape, data, digest: stateDigest } = content;
  return { type, tensor: { dtype, shape, data, stateDigest } };
}

/** Points that a stretch can have. */
const POINTS = 4;

/** A value and its step, relative to the first stretch. */
interface Point {
  step: number;
  value: number;
}

interface Stretch {
  first: Point;
  last: Point;
  least: Point;
  most: Point;
  sum: number;
  count: number;
}

/**
 * Downsamples the values of the steps [from, to): keeps the first, the last, the smallest and the largest value of each
 * stretch. Stretches begin at multiples of their length, so that points stay where they are when a trajectory grows.
 * Values can be added in any order.
 */
export class SeriesSampler {
  readonly stretchSteps: bigint;
  /** The step that relative numbers begin with. */
  readonly #begin: bigint;
  readonly #length: number;
  readonly #isMean: boolean;
  readonly #stretches = new Map<number, Stretch>();

  constructor(from: bigint, to: bigint, { value, maxPoints, stretchSteps: least }: SeriesQuery) {
    this.#isMean = value.of === 'REWARD_MEAN';
    const most = BigInt(this.#isMean ? maxPoints : Math.floor(maxPoints / POINTS));
    let length = 1n;
    // A stretch of one step has one point.
    while (length < least || stretches(from, to, length) > (length === 1n ? BigInt(maxPoints) : most)) length *= 2n;
    this.stretchSteps = length;
    this.#length = Number(length);
    this.#begin = from - (from % length);
  }

  add(stepNumber: bigint, value: number): void {
    this.addAll(stepNumber, [value]);
  }

  /** Adds the values of consecutive steps. NaN and undefined are left out. */
  addAll(first: bigint, values: ArrayLike<number | undefined>, begin = 0, end = values.length): void {
    const offset = Number(first - this.#begin);
    for (let i = begin; i < end; i += 1) {
      const value = values[i];
      if (value === undefined || Number.isNaN(value)) continue;
      this.#add({ step: offset + i, value });
    }
  }

  #add(point: Point): void {
    const place = Math.floor(point.step / this.#length);
    const known = this.#stretches.get(place);
    if (known === undefined) {
      const { value } = point;
      this.#stretches.set(place, { first: point, last: point, least: point, most: point, sum: value, count: 1 });
      return;
    }
    if (point.step < known.first.step) known.first = point;
    if (point.step > known.last.step) known.last = point;
    if (isBefore(point.value - known.least.value, point, known.least)) known.least = point;
    if (isBefore(known.most.value - point.value, point, known.most)) known.most = point;
    known.sum += point.value;
    known.count += 1;
  }

  series(): StepSeries {
    const points: Point[] = [];
    for (const [, stretch] of [...this.#stretches].sort(([a], [b]) => a - b)) points.push(...this.#pointsOf(stretch));
    return {
      stepNumbers: points.map(({ step }) => this.#begin + BigInt(step)),
      values: points.map(({ value }) => value),
      stretchSteps: this.stretchSteps,
    };
  }

  #pointsOf({ first, last, least, most, sum, count }: Stretch): Point[] {
    if (this.#isMean) {
      const mean = sum / count;
      return Number.isNaN(mean) ? [] : [{ step: last.step, value: mean }];
    }
    const byStep = new Map([first, last, least, most].map((point) => [point.step, point]));
    return [...byStep.values()].sort((a, b) => a.step - b.step);
  }
}

/** Whether a point replaces the extreme: it is beyond it, or equal and earlier. Equal infinities differ by NaN. */
function isBefore(difference: number, point: Point, extreme: Point): boolean {
  if (difference < 0) return true;
  return (difference === 0 || point.value === extreme.value) && point.step < extreme.step;
}

function stretches(from: bigint, to: bigint, length: bigint): bigint {
  return to <= from ? 0n : (to - 1n) / length - from / length + 1n;
}
