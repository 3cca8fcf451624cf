import { textOfTensor } from '../step/numbers.ts';
import { type Series, valueAt } from '../tree/series.ts';

/** Returns how a series differs from the first one, at each step that either has, up to the end of the shorter one. */
export function differenceOf(first: Series, other: Series): Series {
  const end = Math.min(first.steps.at(-1) ?? -1, other.steps.at(-1) ?? -1);
  const steps = [...new Set([...first.steps, ...other.steps])].filter((step) => step <= end).sort((a, b) => a - b);
  const values = steps.map((step) => (valueAt(other, step) ?? 0) - (valueAt(first, step) ?? 0));
  return { steps: Float64Array.from(steps), values: Float64Array.from(values) };
}

/** Returns how many steps all trajectories share with the first one. */
export function sharedByAll(differences: readonly ({ readonly sharedSteps: bigint } | undefined)[]): number {
  const shared = differences.flatMap((each) => (each === undefined ? [] : [Number(each.sharedSteps)]));
  return shared.length === 0 ? 0 : Math.min(...shared);
}

/** Returns the ids in an address, each once. */
export function idsIn(text: string | null): string[] {
  return [...new Set((text ?? '').split(',').filter((each) => each !== ''))];
}

/** Returns the value of a field that differs, as JSON. That of a tensor is its numbers. */
export function differingText(json: string): string {
  if (!json.startsWith('{"tensor":')) return json;
  const { tensor } = JSON.parse(json) as { tensor: { dtype: string; shape: number[]; data?: string } };
  const { dtype, shape, data } = tensor;
  return textOfTensor({ dtype, shape, data: data === undefined ? undefined : bytesIn(data) });
}

function bytesIn(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
