import type { Content, Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/**
 * What the tree view plots, as the address names it: `sum`, `reward`, `metric:KEY`, or a number in JSON by pointer:
 * `observation:/2`, `action:/x`, `info:/score`.
 */
export type PlottedValue = string;

export const SUM: PlottedValue = 'sum';

/** Candidates beyond this number are found by their pointer only. */
const MOST_CANDIDATES = 60;

/** Returns true if the value is part of steps in the BASIC view. */
export function isBasic(value: PlottedValue): boolean {
  return value === SUM || value === 'reward' || value.startsWith('metric:');
}

export function labelOf(value: PlottedValue): string {
  if (value === SUM) return 'Sum of rewards';
  if (value === 'reward') return 'Reward';
  const at = value.indexOf(':');
  return `${value.slice(0, at)} ${value.slice(at + 1)}`;
}

export function numberIn(step: Step, value: PlottedValue): number | undefined {
  if (value === SUM) return step.rewardSum;
  if (value === 'reward') return step.reward;
  const at = value.indexOf(':');
  const [kind, rest] = [value.slice(0, at), value.slice(at + 1)];
  if (kind === 'metric') return step.metrics[rest];
  for (const json of jsonsOf(step, kind)) {
    const found = atPointer(json, rest);
    if (typeof found === 'number') return found;
    if (typeof found === 'boolean') return Number(found);
    if (typeof found === 'string' && found !== '' && Number.isFinite(Number(found))) return Number(found);
  }
  return undefined;
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

/** Returns what a JSON Pointer (RFC 6901) names, undefined if there is nothing. */
export function atPointer(json: unknown, pointer: string): unknown {
  if (pointer === '') return json;
  let at = json;
  for (const part of pointer.split('/').slice(1)) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, key)) return undefined;
    at = (at as Record<string, unknown>)[key];
  }
  return at;
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
