import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { pathOfType } from '../../../src/domain/numbers/pointer.ts';
import { tensorPointers } from '../../../src/domain/numbers/tensor.ts';

/**
 * What the tree view plots, as the address names it: `sum`, `reward`, `metric:KEY`, or a number in JSON or a tensor by
 * pointer: `observation:/2`, `action:/x`, `info:/score`, `state:env:/pole/angle`.
 */
export type PlottedValue = string;

export const SUM: PlottedValue = 'sum';

/** Candidates beyond this number are found by their pointer only. */
const MOST_CANDIDATES = 60;

/** Returns what a value is made of: its kind, the key of a metric or the name of a state, and a JSON Pointer. */
export function partsOf(value: PlottedValue): {
  readonly kind: string;
  readonly name: string;
  readonly pointer: string;
} {
  const [, kind = '', rest = ''] = /^(\w+)(?::(.*))?$/s.exec(value) ?? [];
  if (kind === 'metric') return { kind, name: rest, pointer: '' };
  const slash = rest.indexOf('/');
  const pointer = slash === -1 ? '' : rest.slice(slash);
  return { kind, name: kind === 'state' ? rest.slice(0, rest.length - pointer.length).replace(/:$/, '') : '', pointer };
}

/** Returns true if the value can be plotted: addresses can contain anything. */
export function isPlotted(value: string): boolean {
  if (value === SUM || value === 'reward') return true;
  return /^metric:.|^(?:observation|action|info):(?:$|\/)|^state:[^/]*:(?:$|\/)/s.test(value);
}

export function labelOf(value: PlottedValue): string {
  if (value === SUM) return 'Sum of rewards';
  if (value === 'reward') return 'Reward';
  return value.replace(':', ' ').replace(':', ' ');
}

/** Returns the values that a step offers for a plot. */
export function candidates(step: Step): PlottedValue[] {
  const found = Object.keys(step.metrics).map((key) => `metric:${key}`);
  for (const [kind, parts] of [
    ['observation', step.observations],
    ['action', step.actions],
  ] as const) {
    // Parts of a nested value are addressed by their types.
    const isNested = parts.length > 1;
    for (const { type, content } of parts) {
      const prefix = isNested ? pathOfType(type).map(pointerPart).join('') : '';
      const pointers = content?.tensor === undefined ? pointersIn(content?.json ?? '') : tensorPointers(content.tensor);
      for (const pointer of pointers) {
        if (found.length >= MOST_CANDIDATES) break;
        found.push(`${kind}:${prefix}${pointer}`);
      }
    }
  }
  for (const pointer of pointersIn(step.infoJson)) found.push(`info:${pointer}`);
  return [...new Set(found)].slice(0, MOST_CANDIDATES);
}

function pointersIn(json: string): string[] {
  return parsed(json).flatMap((value) => numberPointers(value, MOST_CANDIDATES));
}

function pointerPart(key: string): string {
  return `/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`;
}

function parsed(text: string): unknown[] {
  try {
    return text === '' ? [] : [JSON.parse(text)];
  } catch {
    return [];
  }
}

/** Returns pointers of the numbers in JSON, at most `most`, those near the root first. */
export function numberPointers(json: unknown, most: number): string[] {
  const found: string[] = [];
  const open: [string, unknown][] = [['', json]];
  for (let next = open.shift(); next !== undefined && found.length < most; next = open.shift()) {
    const [pointer, value] = next;
    if (typeof value === 'number') found.push(pointer);
    if (typeof value !== 'object' || value === null) continue;
    for (const key of Object.keys(value).slice(0, most)) {
      open.push([pointer + pointerPart(key), (value as Record<string, unknown>)[key]]);
    }
  }
  return found;
}
