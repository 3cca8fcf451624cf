import type { Content, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/**
 * What the tree view plots, as the address names it: `sum`, `reward`, `metric:KEY`, or a number in JSON by pointer:
 * `observation:/2`, `action:/x`, `info:/score`, `state:env:/pole/angle`.
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
  for (const kind of ['observation', 'action', 'info']) {
    for (const json of jsonsOf(step, kind)) {
      for (const pointer of numberPointers(json, MOST_CANDIDATES)) found.push(`${kind}:${pointer}`);
    }
  }
  return [...new Set(found)].slice(0, MOST_CANDIDATES);
}

function jsonsOf(step: Step, kind: string): unknown[] {
  if (kind === 'info') return parsed(step.infoJson);
  const contents = kind === 'observation' ? step.observations : kind === 'action' ? step.actions : [];
  return contents.flatMap(({ content }) => parsed(jsonTextOf(content)));
}

function jsonTextOf(content: Content | undefined): string {
  return content?.json ?? '';
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
      const part = key.replaceAll('~', '~0').replaceAll('/', '~1');
      open.push([`${pointer}/${part}`, (value as Record<string, unknown>)[key]]);
    }
  }
  return found;
}
